"""What the sinks of a run take: values by their tag, a name in metrics.jsonl or of a picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from etils import epath

# Text is Markdown, bytes are a PNG.
Value = float | str | bytes


@dataclass(frozen=True)
class LoggedRun:
    """The run that a sink shows; process 0 opens sinks, just before it trains.

    `folder` has the run's files, on a disk or in a bucket. Steps after `first` are trained now;
    points of `first` and later may be shown already, by a process that was stopped.
    """

    folder: epath.Path
    first: int


class Sink(Protocol):
    """Takes what one run shows; the values of a call are stored when it returns.

    What it raises ends the run: a UserError with one sentence, Unavailable where the same command
    may succeed later.
    """

    def write(self, step: int, values: Mapping[str, Value]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class SinkConfig(Protocol):
    """A gin-bindable sink: `open_sink` begins to show a run, or resumes it."""

    def open_sink(self, run: LoggedRun) -> Sink: ...
