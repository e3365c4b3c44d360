"""The points of a sweep as people write them: values of settings, a list of points, a grid."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hyla_lm.config.bindings import KEY
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

    @property
    def binding(self) -> str:
        return f"{self.key}={self.text}"

    @property
    def number(self) -> float | None:
        """The value of a number; None of any other."""
        found = _read(self.text)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        return float(found) if is_number else None

    @property
    def label(self) -> str:
        """The value as a folder's name has it: the same for 1e-2 and 0.01."""
        if self.key == GIN_FILE:
            path = Path(self.text)
            return _safe(path.stem, self.text if str(path.parent) not in (".", FOLDER) else "")
        found = _read(self.text)
        items = found if type(found) is tuple else (found,)  # a Reference is a tuple, too
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
        return [value.binding for value in self.values if value.key != GIN_FILE]


def grid(over: Sequence[str], points: Sequence[Sequence[str]]) -> list[Point]:
    """Each of the whole points with each combination of the values of `over`.

    Raises UserError for text that is no setting with values, and for a setting given twice.
    """
    axes = [[(value,) for value in _axis(text)] for text in over]
    listed = [tuple(_single(text) for text in point) for point in points] or [()]
    found = [sum(parts, ()) for parts in product(listed, *axes)]
    for values in found:
        _check_once([value.key for value in values])
    short = _short({value.key for values in found for value in values})
    return [Point(_name(values, short), values) for values in found]


def split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes; raises ValueError."""
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
    if quote or depth:
        raise ValueError
    return [part.strip() for part in parts]


def key_of(binding: str) -> str:
    """The setting or macro that a binding sets."""
    return binding.partition("=")[0].strip()


def _axis(text: str) -> list[Value]:
    key, values = _parted(text, "--over", "VALUE,VALUE")
    try:
        found = split(values)
    except ValueError:
        raise UserError(
            printable(f"--over {text} has a bracket or quote that does not close: close it.")
        ) from None
    if "" in found:
        raise UserError(printable(f"--over {text} has an empty value: write --over {key}=A,B."))
    return [Value(key, one) for one in found]


def _single(text: str) -> Value:
    return Value(*_parted(text, "--point", "VALUE"))


def _parted(text: str, flag: str, wanted: str) -> tuple[str, str]:
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values or not KEY.fullmatch(key):
        name = key if KEY.fullmatch(key) else "Class.field"
        raise UserError(printable(f"{flag} {text} sets nothing: write {flag} {name}={wanted}."))
    return key, values


def _check_once(keys: Sequence[str]) -> None:
    for key in keys:
        if keys.count(key) > 1 and key != GIN_FILE:
            raise UserError(f"{key} is set twice by --over and --point: leave one out.")


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


def _read(text: str) -> Any:
    """The value that gin reads; the text itself if it reads none."""
    try:
        return value_of(text)
    except NoValue:
        return text


def _word(value: Any) -> str:
    """A value in a word: numbers that are equal have the same, a reference has its name."""
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE:
        return str(int(value))
    if isinstance(value, str):
        return value
    return repr(value).removesuffix("()").lstrip("@%")


def _safe(word: str, whole: str = "") -> str:
    """A word of safe characters; a checksum tells what is replaced, cut off or only in `whole`."""
    safe = UNSAFE.sub("_", word)[:LONGEST_LABEL]
    told = whole or ("" if safe == word else word)
    return f"{safe}-{zlib.crc32(told.encode()):08x}" if told else safe
