"""The points of a sweep as people write them: values of settings, a list of points, a grid."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hyla_lm.config.gin_text import FOLDER, NoValue, value_of
from hyla_lm.errors import UserError, printable

GIN_FILE = "gin_file"  # the key whose values are gin files
UNCHANGED = "unchanged"  # the name of a point that sets nothing
QUOTES, OPENING, CLOSING = "'\"", "([{", ")]}"
UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
LONGEST_LABEL, LONGEST_NAME = 40, 180
LARGEST_WHOLE = 1e15


@dataclass(frozen=True)
class Value:
    """A key, such as OptimizerConfig.learning_rate, and a value of it as people write it."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}={self.text}"

    @property
    def value(self) -> Any:
        """What gin reads; the text itself where it reads nothing."""
        try:
            return value_of(self.text)
        except NoValue:
            return self.text

    @property
    def number(self) -> float | None:
        """The value of a number; None of any other."""
        value = self.value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None

    @property
    def label(self) -> str:
        """The value as a folder's name has it: the same for 1e-2 and 0.01."""
        if self.key == GIN_FILE:
            path = Path(self.text)
            return _safe(path.stem, self.text if str(path.parent) not in (".", FOLDER) else "")
        value = self.value
        items = value if type(value) is tuple else (value,)  # a Reference is a tuple, too
        return _safe("+".join(map(_word, items)))


@dataclass(frozen=True)
class Point:
    """What the runs of a point have beside what all runs have; `name` is that of its folder."""

    name: str
    values: tuple[Value, ...]

    @property
    def gin_files(self) -> list[str]:
        return [value.text for value in self.values if value.key == GIN_FILE]

    @property
    def bindings(self) -> list[str]:
        return [str(value) for value in self.values if value.key != GIN_FILE]


def grid(over: Sequence[str], points: Sequence[Sequence[str]]) -> list[Point]:
    """Each of the whole points with each combination of the values of `over`.

    Raises UserError for text that sets nothing; whether settings exist is not checked.
    """
    axes = []
    for text in over:
        key, values = _parted("--over", text)
        axes.append([(Value(key, value),) for value in split(values)])
    listed = [tuple(Value(*_parted("--point", text)) for text in point) for point in points]
    combined = [sum(parts, ()) for parts in product(listed or [()], *axes)]
    short = _short({value.key for values in combined for value in values})
    return [Point(_name(values, short), values) for values in combined]


def split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        else:
            depth += (character in OPENING) - (character in CLOSING)
        if character == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _parted(flag: str, text: str) -> tuple[str, str]:
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals:
        raise UserError(printable(f"{flag} {text} sets nothing: write {flag} {key}=VALUE."))
    return key, values


def _short(keys: set[str]) -> dict[str, str]:
    """The field of each key, or the whole key where another has the same field."""
    fields = [key.rpartition(".")[2] for key in keys]
    own = dict(zip(keys, fields, strict=True))
    return {key: field if fields.count(field) == 1 else _safe(key) for key, field in own.items()}


def _name(values: Sequence[Value], short: dict[str, str]) -> str:
    name = ",".join(f"{short[value.key]}={value.label}" for value in values) or UNCHANGED
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{zlib.crc32(name.encode()):08x}"


def _word(value: Any) -> str:
    """A value in a word: numbers that are equal have the same, a reference has its name."""
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE:
        return str(int(value))
    if isinstance(value, str):
        return value
    return repr(value).removesuffix("()").lstrip("@%")


def _safe(word: str, whole: str = "") -> str:
    """A word of safe characters; a checksum is of what was replaced or cut off, or of `whole`."""
    safe = UNSAFE.sub("_", word)[:LONGEST_LABEL]
    replaced = whole or ("" if safe == word else word)
    return f"{safe}-{zlib.crc32(replaced.encode()):08x}" if replaced else safe
