"""What a person sees of a run in the terminal: tables, progress and lines."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

MIN_SECONDS_BETWEEN_LINES = 5.0


class Console:
    """A bar with loss, tokens/s and time left on a terminal; plain lines elsewhere.

    Only process 0 prints; for the others, `prints` is False.
    """

    def __init__(self, steps: int, done: int, prints: bool = True):
        self._prints, self._steps = prints, steps
        self._last_line = float("-inf")
        self._bar: Progress | None = None
        if prints and sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
            )
            self._id = self._bar.add_task("", total=steps, completed=done)
            self._bar.start()

    def close(self) -> None:
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

    def show_step(
        self, step: int, described: str, tokens_per_second: float | None, left: str = ""
    ) -> None:
        """Shows the metrics of a logged step, its speed if it is known, and the time left."""
        speed = "" if tokens_per_second is None else f"{tokens_per_second:,.0f} tokens/s"
        text = "  ".join(filter(None, (described, speed, left)))
        if self._bar:
            self._bar.update(self._id, description=text)
            return
        now = time.monotonic()
        if now - self._last_line >= MIN_SECONDS_BETWEEN_LINES or step == self._steps:
            self._last_line = now
            self.print(f"step {step}/{self._steps}  {text}")

    def print(self, line: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(line, highlight=False)
        elif self._prints:
            print(line, flush=True)


def print_table(title: str, rows: Mapping[str, str]) -> None:
    """Prints a table of two columns."""
    table = Table(title=title, show_header=False, title_justify="left", box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    rich.console.Console().print(table)
