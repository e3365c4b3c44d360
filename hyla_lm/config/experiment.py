"""The whole configuration of one run, built from gin."""

from dataclasses import dataclass, field

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.logs.sinks import SinkConfig
from hyla_lm.model.config import ModelConfig
from hyla_lm.optim import OptimizerConfig
from hyla_lm.parallel.mesh import MeshConfig
from hyla_lm.tasks.protocol import Suite, TaskConfig
from hyla_lm.update_policy import UpdatePolicy


@configurable
@dataclass(frozen=True)
class TrainConfig:
    """Task, length, batch and seed of training, and how often to evaluate."""

    task: TaskConfig | None = setting(None, "what is trained, such as @LanguageModel()")
    steps: int = setting(1000, "updates; the learning-rate schedule ends with the last", minimum=1)
    batch_size: int = setting(256, "rows of a global batch", minimum=1)
    suites: tuple[Suite, ...] = setting(
        (), "small models trained with the same attention, such as (@FuzzyLogicSuite(),)"
    )
    accumulate_steps: int = setting(1, "micro-batches whose gradients an update sums", minimum=1)
    seed: int = setting(
        0, "seed of initialisation, data order and dropout", minimum=0, maximum=2**32 - 1
    )
    eval_every: int = setting(
        1000,
        "steps between evaluations; the last step is always evaluated; 0 evaluates no other",
        minimum=0,
    )
    hang_seconds: int = setting(
        1800, "seconds without progress after which the run is ended; 0 never ends it", minimum=0
    )
    profile: tuple[int, int] | None = setting(
        None, "steps to trace, the first and how many, such as (50, 5); None traces none"
    )

    def check(self) -> None:
        if self.batch_size % self.accumulate_steps:
            raise UserError(
                f"TrainConfig.batch_size = {self.batch_size} is no multiple of "
                f"TrainConfig.accumulate_steps = {self.accumulate_steps}: change one."
            )
        if self.profile is not None and (len(self.profile) != 2 or min(self.profile) < 1):
            raise UserError(
                f"TrainConfig.profile = {self.profile} must be the first step to trace and how "
                "many, each at least 1, such as (50, 5)."
            )


@configurable
@dataclass(frozen=True)
class LogConfig:
    """How often metrics are written and where they go, and what is measured beside the loss."""

    every: int = setting(100, "steps that each logged point averages", minimum=1)
    layers: bool = setting(
        False, "measure norms of gradients, updates and parameters, of the model and by layer"
    )
    details_every: int = setting(
        0,
        "steps between attention diagnostics: figures and pictures; 0 makes none",
        minimum=0,
    )
    sinks: tuple[SinkConfig, ...] = setting(
        (), "classes that metrics go to besides metrics.jsonl and TensorBoard"
    )


@configurable
@dataclass(frozen=True)
class CheckpointConfig:
    """How often to save, and how many checkpoints to keep."""

    every: int = setting(
        1000, "steps between checkpoints; the last step is always saved", minimum=1
    )
    keep: int = setting(3, "number of newest checkpoints to keep", minimum=1)
    stop_seconds: int = setting(
        30, "longest time for a save when the run is interrupted or fails", minimum=1
    )


@configurable
@dataclass(frozen=True)
class WarmStart:
    """Another run, from whose parameters this one begins; optimizer, step and data begin anew."""

    run: str = setting("", "folder of the other run, local or gs://; '' begins from nothing")
    step: int | None = setting(None, "its checkpoint to take; None is the newest", minimum=0)
    only: tuple[str, ...] = setting(
        (), "parameters to take, such as ('blocks/*/attention/*',); () takes all of the same name"
    )
    ignore: tuple[str, ...] = setting((), "parameters not to take, such as ('embed/*',)")


@dataclass(frozen=True)
class Experiment:
    """One run's configuration; `text` is gin text that rebuilds it."""

    train: TrainConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    mesh: MeshConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    updates: UpdatePolicy = field(default_factory=UpdatePolicy)
    warm_start: WarmStart = field(default_factory=WarmStart)
    text: str = field(compare=False, kw_only=True)
