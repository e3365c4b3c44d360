"""Reads the configuration of a run from gin files and bindings."""

from collections.abc import Sequence

from hyla_lm.config import gin_files, gin_text
from hyla_lm.config.experiment import (
    Branch,
    CheckpointConfig,
    Experiment,
    LogConfig,
    TrainConfig,
    WarmStart,
)
from hyla_lm.config.gin_files import GinFile
from hyla_lm.errors import UserError
from hyla_lm.input.mixture import RowMixture  # noqa: F401  makes it known to gin
from hyla_lm.input.prepared import Rows  # noqa: F401  makes it known to gin
from hyla_lm.input.stream import C4Stream  # noqa: F401  makes it known to gin
from hyla_lm.logs.wandb import WandB  # noqa: F401  makes it known to gin
from hyla_lm.model.config import ModelConfig
from hyla_lm.optim import OptimizerConfig, make_schedule
from hyla_lm.parallel.mesh import MeshConfig
from hyla_lm.tasks.language_model import LanguageModel  # noqa: F401  makes it known to gin
from hyla_lm.update_policy import UpdatePolicy


def read_experiment(files: Sequence[GinFile], bindings: Sequence[str]) -> Experiment:
    """Builds an experiment from gin files, in any order, and bindings; raises UserError."""
    if not any(binding.startswith("TrainConfig.task") for binding in bindings):
        _check_kinds(files)
    read = gin_files.read(
        files,
        bindings,
        TrainConfig,
        ModelConfig,
        OptimizerConfig,
        MeshConfig,
        CheckpointConfig,
        LogConfig,
        UpdatePolicy,
        WarmStart,
        Branch,
    )
    experiment = Experiment(*read.values, text=read.text)
    if experiment.train.task is None:
        raise UserError(
            "TrainConfig.task is not set: add the gin file of a model, such as "
            f"{gin_text.FIRST}, or bind it, for example to @LanguageModel()."
        )
    make_schedule(experiment.optimizer, experiment.train.steps)
    return experiment


def _check_kinds(files: Sequence[GinFile]) -> None:
    """Raises UserError for no file, and for files that say where text is but not what reads it."""
    if not files:
        raise UserError(f"--gin_file is missing: give {gin_text.choice_of_files()}.")
    read = [file for file in files if isinstance(file, str)]
    found = {name for path in read for name in gin_text.settings_in(path)}
    if "LanguageModel.data" in found and "TrainConfig.task" not in found:
        models = gin_text.files_that_set(
            "LanguageModel.sequence_length", without="LanguageModel.data"
        )
        raise UserError(
            f"{', '.join(read)} says where text is but no file sets TrainConfig.task: "
            f"add the gin file of a model, such as {' or '.join(models)}."
        )
