"""The lines of a run's metrics.jsonl: each a JSON object of a step and numbers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.storage import PathLike, as_path, read_whole


def read_lines(workdir: PathLike) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; raises UserError for a damaged one."""
    path = as_path(workdir) / "metrics.jsonl"
    return parse_lines(read_whole(path) or b"", f"{path}")


def parse_lines(content: bytes, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Parses lines of JSON, each a step and numbers; drops a last line that a kill cut short.

    Raises UserError for a damaged line; `name` is the file's in the error.
    """
    lines = content.split(b"\n")[:-1]
    return [_parse_line(line, f"{name} line {n}") for n, line in enumerate(lines, 1)]


def _parse_line(content: bytes, place: str) -> dict[str, Any]:
    line = parse_object(content, place)
    if not isinstance(line.get("step"), int) or line["step"] < 0:
        raise damaged(place, "no step")
    if not all(map(_is_number, line.values())):
        raise damaged(place, "not only numbers")
    return line


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def parse_object(content: bytes, place: str) -> dict[str, Any]:
    """A JSON object; raises UserError, which names the place, for anything else."""
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise damaged(place, "no JSON object")
    return found


def damaged(place: str, why: str) -> UserError:
    """The error of a file of a run that is not as it was written."""
    return UserError(f"{place} is damaged ({why}): delete it, or restore the file.")


def stays(line: Mapping[str, Any], step: int, redone: Sequence[str]) -> bool:
    """Whether a run that goes on from a step keeps a line, or writes it again."""
    is_redone = line["step"] == step and any(name.startswith(tuple(redone)) for name in line)
    return line["step"] <= step and not is_redone
