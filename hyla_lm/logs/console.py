"""Output to the terminal: the start-up summary, progress and closing lines."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

MIN_SECONDS_BETWEEN_LINES = 5.0


def show_summary(title: str, lines: Mapping[str, str]) -> None:
    """Prints a two-column table."""
    table = Table(title=title, show_header=False, title_justify="left", box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, value)
    Console().print(table)


class TrainingProgress(AbstractContextManager["TrainingProgress"]):
    """A bar with loss, tokens/s and time left on a terminal; plain lines elsewhere."""

    def __init__(self, steps: int, done: int, speaks: bool = True):
        self._speaks = speaks
        self._steps = steps
        self._last_line = float("-inf")
        self._bar: Progress | None = None
        if speaks and sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
            )
            self._id = self._bar.add_task("", total=steps, completed=done)

    def __enter__(self) -> "TrainingProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the bar for the block, since a terminal can have only one."""
        if self._bar:
            self._bar.stop()
        yield
        if self._bar:
            self._bar.start()

    def advance(self, step: int) -> None:
        if self._bar:
            self._bar.update(self._id, completed=step)

    def show(
        self, step: int, described: str, tokens_per_second: float | None, left: str = ""
    ) -> None:
        """Shows the metrics of a logged step, its speed if it is known, and the time left."""
        speed = "" if tokens_per_second is None else f"{tokens_per_second:,.0f} tokens/s"
        told = "  ".join(filter(None, (described, speed, left)))
        if self._bar:
            self._bar.update(self._id, description=told)
            return
        now = time.monotonic()
        if not self._speaks:
            return
        if now - self._last_line >= MIN_SECONDS_BETWEEN_LINES or step == self._steps:
            self._last_line = now
            print(f"step {step}/{self._steps}  {told}", flush=True)

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._bar:
            self._bar.console.print(line, highlight=False)
        elif self._speaks:
            print(line, flush=True)
