"""The lines that a run logged, as tests compare them."""

from pathlib import Path
from typing import Any

from hyla_lm.run.folder import parse_lines, read_lines


def measured(workdir: Path, prefix: str = "") -> list[dict[str, Any]]:
    """The lines with a tag that begins so, without what depends on the clock."""
    lines = [line for line in read_lines(workdir) if any(tag.startswith(prefix) for tag in line)]
    return [_without_speeds(line) for line in lines]


def measured_in(content: bytes) -> list[dict[str, Any]]:
    """The same of the content of metrics.jsonl."""
    return [_without_speeds(line) for line in parse_lines([content])]


def _without_speeds(line: dict[str, Any]) -> dict[str, Any]:
    return {tag: value for tag, value in line.items() if not tag.startswith("perf/")}
