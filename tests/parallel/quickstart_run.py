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


def widen() -> list[str]:
    """Makes float32 mean float64, before the package is imported; the binding that asks for it."""
    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64
    from hyla_lm.model.config import ModelConfig

    dtype = ModelConfig.__dataclass_fields__["dtype"]
    dtype.metadata = {**dtype.metadata, "choices": None}
    return ["--gin.ModelConfig.dtype='float64'"]


def main(last: int, precision: str, arguments: list[str]) -> int:
    wide = widen() if precision == "float64" else []
    from hyla_lm.cli import main as cli
    from hyla_lm.logs import step_log

    record = step_log.StepLog.record

    def stop_after(log, step, output, rows) -> None:
        print(json.dumps({"step": step, "rows": rows.tolist()}), flush=True)
        if step == last and jax.process_index() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        record(log, step, output, rows)

    step_log.StepLog.record = stop_after
    return cli.main([*arguments, *wide])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
