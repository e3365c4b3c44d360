"""What a place for the metrics of a run offers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Hyperparameter = bool | int | float | str


@dataclass(frozen=True)
class Histogram:
    """How many values fall between neighbouring edges: count_N and edge_N1, with their moments."""

    count_N: np.ndarray
    edge_N1: np.ndarray
    sum: float
    sum_squares: float


class MetricSink(Protocol):
    """Takes what one run shows; all of a call is kept when it returns.

    Tags are those of metrics.jsonl, such as "train/loss_nats". A sink may show them under names of
    its own.
    """

    def hyperparameters(self, values: Mapping[str, Hyperparameter]) -> None:
        """The settings of the run, by which runs are sorted and coloured."""
        ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...

    def histogram(self, step: int, tag: str, values: Histogram) -> None: ...

    def image(self, step: int, tag: str, png: bytes) -> None: ...

    def text(self, step: int, tag: str, markdown: str) -> None: ...

    def close(self) -> None: ...
