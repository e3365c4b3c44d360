"""Reads the configuration of a run from gin files and bindings."""

from collections.abc import Sequence

from hyla_lm.config import gin_files
from hyla_lm.config.experiment import (
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
from hyla_lm.model.config import ModelConfig
from hyla_lm.optim import OptimizerConfig, make_schedule
from hyla_lm.parallel.mesh import MeshConfig
from hyla_lm.tasks.language_model import LanguageModel  # noqa: F401  makes it known to gin
from hyla_lm.update_policy import UpdatePolicy


def read_experiment(files: Sequence[GinFile], bindings: Sequence[str]) -> Experiment:
    """Builds an experiment from gin files, in any order, and bindings; raises UserError."""
    values, text = gin_files.read(
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
    )
    experiment = Experiment(*values, text=text)
    if experiment.train.task is None:
        raise UserError(
            "TrainConfig.task is not set: give the gin file of a model, such as "
            "--gin_file=gin/quickstart.gin."
        )
    make_schedule(experiment.optimizer, experiment.train.steps)
    return experiment
