"""What the trainer trains: batches, a loss, evaluation sets and the model's inputs and outputs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from hyla_lm.metrics import Metrics
from hyla_lm.model.config import Features, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.batch_shard import Share

Batch = Mapping[str, Any]
LossFn = Callable[[Any, Batch, jax.Array | None], Metrics]
OBJECTIVE = "objective"


class BatchStream(Protocol):
    """An endless iterator of this process's share of host batches, restorable from JSON."""

    def __next__(self) -> dict[str, np.ndarray]: ...

    def state(self) -> dict[str, Any]:
        """The position after the last batch."""
        ...

    def close(self) -> None:
        """Stops reading ahead."""
        ...


class Task(Protocol):
    """A prepared task. Batches are dicts of arrays with a leading batch axis and a `row` number."""

    io: Tokens | Features
    sequence_length: int

    def identity(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to be continued."""
        ...

    def summary(self) -> dict[str, str]:
        """Lines for the start-up summary."""
        ...

    def train_stream(
        self, batch_size: int, seed: int, share: Share, states: list[dict[str, Any]] | None
    ) -> BatchStream:
        """Training batches, from the start or from the states that all processes saved."""
        ...

    def evaluation_sets(
        self, batch_size: int, share: Share, final: bool
    ) -> Mapping[str, Iterator[dict[str, np.ndarray]]]:
        """Evaluation sets by name, from their start; `final` asks for all of them.

        A name goes before those of its metrics (`held_out_r2`); the name "" adds nothing.
        """
        ...

    def loss(self, model: Decoder) -> LossFn:
        """Summed metrics of a batch; `objective` is the one that is minimised."""
        ...

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """What is logged, from the means of the loss's metrics over a set or a window of steps."""
        ...

    def describe(self, values: Mapping[str, float]) -> str:
        """The figures a person watches, from those of training or of all evaluation sets."""
        ...

    def tokens_per_batch(self, batch_size: int) -> int:
        """Positions that one global batch holds."""
        ...

    def closing_lines(
        self, model: Decoder, params: Any, validation: Mapping[str, float]
    ) -> list[str]:
        """What to tell at the end of training, a line each."""
        ...


@runtime_checkable
class TaskConfig(Protocol):
    """A gin-bindable task: `prepare_task` makes or opens its data and checks it."""

    def prepare_task(self, batch_size: int) -> Task: ...


class PlannedTask(Task, Protocol):
    """A task without its data, only to be compiled."""

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the arrays of one global batch."""
        ...


@runtime_checkable
class Plannable(Protocol):
    """A task config whose train step can be compiled where its data is not."""

    def planned_task(self) -> PlannedTask: ...
