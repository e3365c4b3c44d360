"""Trains as if asked to stop after a step; prints the rows of every step as lines of JSON.

Usage: quickstart_run.py STEP PRECISION ARGUMENTS of hyla-lm. With float64 parameters, activations
and optimizer are float64, which the package itself does not offer.
"""

import json
import os
import signal
import sys

import jax
import jax.numpy as jnp

last, precision, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
if precision == "float64":
    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64

from hyla_lm import cli, trainer
from hyla_lm.model_config import ModelConfig

if precision == "float64":
    dtype = ModelConfig.__dataclass_fields__["dtype"]
    dtype.metadata = {**dtype.metadata, "choices": None}
    arguments.append("--gin.ModelConfig.dtype='float64'")
started = trainer.StepLog.started


def stop_after(log, step, output, rows, progress) -> None:
    print(json.dumps({"step": step, "rows": rows.tolist()}), flush=True)
    if step == last and jax.process_index() == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    started(log, step, output, rows, progress)


trainer.StepLog.started = stop_after
sys.exit(cli.main(arguments))
