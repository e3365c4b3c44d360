"""Several sinks that take the same."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from hyla_lm.logs.protocol import Histogram, Hyperparameter, MetricSink


class Several:
    """A sink that gives all it takes to each of its sinks, in order; to none of them is allowed."""

    def __init__(self, sinks: Sequence[MetricSink]):
        self._sinks = sinks

    def hyperparameters(self, values: Mapping[str, Hyperparameter]) -> None:
        for sink in self._sinks:
            sink.hyperparameters(values)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink.scalars(step, values)

    def histogram(self, step: int, tag: str, values: Histogram) -> None:
        for sink in self._sinks:
            sink.histogram(step, tag, values)

    def image(self, step: int, tag: str, png: bytes) -> None:
        for sink in self._sinks:
            sink.image(step, tag, png)

    def text(self, step: int, tag: str, markdown: str) -> None:
        for sink in self._sinks:
            sink.text(step, tag, markdown)

    def close(self) -> None:
        """Closes all, even where one fails."""
        with ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.close)
