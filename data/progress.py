"""Progress on standard error: a bar on a terminal, one line elsewhere."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import rich.progress
from rich.console import Console

T = TypeVar("T")


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yields the items while showing how many of `total` are done."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from rich.progress.track(items, label, total, console=console, transient=True)
    else:
        console.print(label if total is None else f"{label} ({total})")
        yield from items
