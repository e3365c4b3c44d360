"""What a task is, in the parts that are needed apart: objective, data and presentation."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np

from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import Features, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.batch_shard import BatchShard

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
        ...

    @property
    def sequence_length(self) -> int:
        """T, positions of a row."""
        ...

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the arrays of one global batch."""
        ...

    def loss(self, model: Decoder) -> LossFn:
        """(objective, metrics) of (params, batch, dropout key), each a sum with its count.

        The objective's sum is differentiated; without a key nothing is dropped.
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """An objective whose model can be looked into (LogConfig.details_every)."""

    def inputs(self, batch: Batch) -> tuple[jax.Array, jax.Array | None]:
        """The model's inputs, and the document of each (BxT), or None if a row is one."""
        ...


@runtime_checkable
class Labelled(Protocol):
    """An objective that knows which function each example is of (CodeLoss.kind = "contrastive")."""

    def functions(self, batch: Batch) -> jax.Array:
        """Integers, BxM: examples of the same function have equal rows, others do not."""
        ...


class BatchStream(Protocol):
    """An endless iterator of one process's shard of host batches, restorable from JSON."""

    def __next__(self) -> HostBatch: ...

    def state(self) -> dict[str, Any]:
        """The position after the last batch."""
        ...

    def close(self) -> None:
        """Stops reading ahead."""
        ...


class TaskData(Protocol):
    """Batches to train and evaluate on, and what names them."""

    def identity(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to be continued."""
        ...

    def summary(self) -> dict[str, str]:
        """Lines for the start-up summary."""
        ...

    def train_stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> BatchStream:
        """Training batches, from the start or from the states that all shards saved."""
        ...

    def evaluation_sets(self, shard: BatchShard, final: bool) -> Mapping[str, Iterator[HostBatch]]:
        """Evaluation sets by name, from their start; `final` asks for all of them.

        A name goes before those of its metrics (`held_out_r2`); the name "" adds nothing.
        """
        ...


@runtime_checkable
class NamesSets(Protocol):
    """Task data with evaluation sets that a run may add or drop while it trains."""

    def named_sets(self) -> dict[str, str]:
        """A hash of the content of each, by name."""
        ...


class Presentation(Protocol):
    """What people see of a task's metrics."""

    def logged_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """What is logged, from the means of the loss's metrics over a set or a window of steps."""
        ...

    def describe(self, values: Mapping[str, float]) -> str:
        """The metrics a person watches, from those of training or of all evaluation sets."""
        ...

    def closing_lines(
        self, model: Decoder, params: Any, validation: Mapping[str, float]
    ) -> list[str]:
        """What to tell at the end of training, a line each."""
        ...


class Task(Objective, TaskData, Presentation, Protocol):
    """A prepared task."""


@runtime_checkable
class TaskConfig(Protocol):
    """A gin-bindable task: `prepare_task` makes or opens its data and checks it."""

    def prepare_task(self, batch_size: int) -> Task: ...


@runtime_checkable
class Plannable(Protocol):
    """A task config whose train step can be compiled where its data is not."""

    def planned_objective(self) -> Objective: ...


@runtime_checkable
class Ranked(Protocol):
    """A task config that says by which number of summary.json its runs are ranked."""

    ranked_by: ClassVar[str]
