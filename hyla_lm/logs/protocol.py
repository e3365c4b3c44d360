"""What a place for the metrics of a run offers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from etils import epath

Hyperparameter = bool | int | float | str


@dataclass(frozen=True)
class Histogram:
    """How many values fall between neighbouring edges: count_N and edge_N1, with their moments."""

    count_N: np.ndarray
    edge_N1: np.ndarray
    sum: float
    sum_squares: float


@dataclass(frozen=True)
class Shown:
    """The run that a sink shows: the lead process opens sinks, once it is sure that it trains.

    `folder` has the run's files, on a disk or in a bucket. Steps after `first` are trained now;
    points of `first` and later may be shown already, of a process that was stopped.
    """

    folder: epath.Path
    first: int

    @property
    def name(self) -> str:
        return self.folder.name


class MetricSink(Protocol):
    """Takes what one run shows; all of a call is kept when it returns.

    Tags are those of metrics.jsonl, such as "train/loss_nats". A sink may show them under names of
    its own. What it raises ends the run: a UserError with one sentence, Unavailable where the same
    command may succeed later.
    """

    def hyperparameters(self, values: Mapping[str, Hyperparameter]) -> None:
        """The settings of the run, by which runs are sorted and coloured; the first matter most."""
        ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...

    def histogram(self, step: int, tag: str, values: Histogram) -> None: ...

    def image(self, step: int, tag: str, png: bytes) -> None: ...

    def text(self, step: int, tag: str, markdown: str) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class SinkConfig(Protocol):
    """A gin-bindable sink: `open_sink` begins to show a run, or goes on with it."""

    def open_sink(self, run: Shown) -> MetricSink: ...
