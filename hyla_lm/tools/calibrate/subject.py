"""What is calibrated: the config with its program on the devices that are here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel.devices import devices as all_devices
from hyla_lm.parallel.mesh import batch_ways
from hyla_lm.run.program import Program, checked_mesh, lay_out
from hyla_lm.tasks.language_model import NextToken
from hyla_lm.tools.plan.compile import planned_objective

ON_ACCELERATOR = "gin/c4_50m_hyla.gin"
ON_CPU = "gin/calibrate_cpu.gin"


@dataclass(frozen=True)
class Subject:
    """An experiment laid out on all devices, each of which holds all parameters."""

    gin_files: tuple[str, ...]
    is_default: bool
    experiment: Experiment
    program: Program[NextToken]
    devices: Sequence[jax.Device]

    @property
    def platform(self) -> str:
        return self.devices[0].platform

    @property
    def kind(self) -> str:
        return self.devices[0].device_kind

    @property
    def micro_batches(self) -> int:
        return self.experiment.train.accumulate_steps

    @property
    def rows(self) -> int:
        """Rows of one micro-batch on one device."""
        ways = batch_ways(self.program.mesh) * self.micro_batches
        return self.experiment.train.batch_size // ways

    def batch(self) -> dict[str, np.ndarray]:
        """A global batch of random tokens, which are no BOS."""
        size, task = self.experiment.train.batch_size, self.program.task
        shape = self.program.task.batch_shapes(size)["tokens"].shape
        drawn = np.random.default_rng(0).integers(1, task.vocab_size, shape, np.int32)
        tokens = np.where(drawn == task.bos, 0, drawn).astype(np.int32)
        rows = np.arange(size, dtype=np.int32)
        return {"tokens": tokens, "text_bytes": np.ones_like(rows), "row": rows}


def read_subject(gin_files: Sequence[str], bindings: list[str]) -> Subject:
    """The config on the devices here, by default one for their platform; raises UserError.

    The default is the paper's 50M model with HYLA on a GPU or TPU, a small one on a CPU.
    """
    devices = all_devices()
    if jax.process_count() > 1:
        raise UserError(
            f"calibrate measures one host, and here are {jax.process_count()}: run it on a slice "
            "of one host."
        )
    files = tuple(gin_files) or (ON_CPU if devices[0].platform == "cpu" else ON_ACCELERATOR,)
    experiment = read_experiment(files, bindings)
    objective: Any = planned_objective(experiment)
    if not isinstance(objective, NextToken):
        raise UserError(
            f"TrainConfig.task = @{type(experiment.train.task).__name__}() cannot be calibrated: "
            "give the config of a language model, @LanguageModel()."
        )
    mesh = checked_mesh(experiment, devices)
    for axis in ("fsdp", "model"):
        if mesh.shape[axis] > 1:
            raise UserError(
                f"MeshConfig.{axis} = {mesh.shape[axis]} divides parameters, and calibrate times "
                f"parts that a device holds whole: set it to 1."
            )
    program = lay_out(experiment, objective, mesh)
    return Subject(files, not gin_files, experiment, program, devices)
