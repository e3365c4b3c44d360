"""What a task is: its objective, the task with its data, its settings; and suites beside it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np

from hyla_lm.input.source import Batches
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.sharding import BatchShard

Batch = Mapping[str, Any]
HostBatch = dict[str, np.ndarray]
LossFn = Callable[[Any, Batch, jax.Array | None], tuple[Pair, Metrics]]


class Objective(Protocol):
    """What is computed of a batch: all that compiling a train step needs.

    Batches are dicts of arrays with a leading batch axis and a `row` number.
    """

    @property
    def io(self) -> Tokens | Features:
        """The model's inputs and outputs."""

    @property
    def sequence_length(self) -> int:
        """T, positions of a row."""

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the arrays of one global batch."""

    def inputs(self, batch: Batch) -> tuple[jax.Array, jax.Array | None]:
        """The model's inputs, and the document of each (BxT), or None if a row is one."""

    def loss(self, model: Decoder) -> LossFn:
        """(objective, metrics) of (params, batch, dropout key), each a sum with its count.

        The objective's sum is differentiated; without a key nothing is dropped.
        """


class Task(Objective, Protocol):
    """A prepared task: the objective, batches to train and evaluate on, and what people see."""

    def identity(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to be continued."""

    def summary(self) -> dict[str, str]:
        """Lines for the start-up summary."""

    def train_stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> Batches:
        """Training batches, from the start or from the states that all shards saved."""

    def evaluation_sets(self, shard: BatchShard, final: bool) -> Mapping[str, Iterator[HostBatch]]:
        """Named evaluation sets, from their start; `final` asks for all of them.

        A name goes before those of its metrics (`held_out_r2`); the name "" adds nothing.
        """

    def logged_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """What is logged, from the means of the loss's metrics over a set or a window of steps."""

    def describe(self, values: Mapping[str, float]) -> str:
        """The metrics a person watches, from those of training or of all evaluation sets."""

    def closing_lines(
        self, model: Decoder, params: Any, validation: Mapping[str, float]
    ) -> list[str]:
        """What to print at the end of training, a line each."""


@runtime_checkable
class TaskConfig(Protocol):
    """A gin-bindable task. Sweeps rank runs by `ranked_by` of summary.json; "" ranks by none."""

    ranked_by: ClassVar[str]

    def prepare_task(self, batch_size: int) -> Task:
        """Makes or opens the data and checks it."""

    def planned_objective(self) -> Objective:
        """Only the objective, to compile the train step where its data is not."""


@runtime_checkable
class Suite(Protocol):
    """A gin-bindable suite of small models, trained beside a run in its own folder."""

    @property
    def name(self) -> str:
        """The name of its folder in `suites`, and of its TensorBoard tags."""

    @property
    def every(self) -> int | None:
        """Steps of the run after which the suite catches up with it; None trains it at the end."""

    def check_model(self, model: ModelConfig) -> None:
        """Raises UserError if the suite cannot train with this model's attention."""

    def run(self, model: ModelConfig, folder: str, share: float) -> dict[str, float]:
        """Trains to this share of the suite's steps, from the newest checkpoint in the folder.

        Returns metrics; raises Preempted when it is interrupted, after saving.
        """
