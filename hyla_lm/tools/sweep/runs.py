"""The runs of a sweep: a grid of settings, and a run for each of its points and seeds."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.gin_text import FOLDER, value_of
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError, printable
from hyla_lm.run.folder import read_summary
from hyla_lm.storage import as_path, read_whole

GIN_FILE = "gin_file"  # the key whose values are gin files
UNCHANGED = "unchanged"  # the name of a point that sets nothing
SEED = "TrainConfig.seed"
SEED_MACRO = re.compile(rf"^{re.escape(SEED)} = %(\w+)$", re.M)
QUOTES, OPENING, CLOSING = "'\"", "([{", ")]}"
UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
LONGEST_LABEL, LONGEST_NAME = 40, 180
LARGEST_WHOLE = 1e15


class Point(NamedTuple):
    """What the runs of a point set, as people write it; `name` is that of its folder."""

    name: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Run:
    """A run of a sweep, as `hyla-lm train` takes it."""

    point: Point
    seed: int
    workdir: str
    gin_files: tuple[str, ...]
    bindings: tuple[str, ...]
    experiment: Experiment

    @property
    def name(self) -> str:
        """Its folder in that of the sweep."""
        return f"{self.point.name}/seed={self.seed}"

    @property
    def arguments(self) -> list[str]:
        """The arguments after `hyla-lm train`."""
        files = [f"--gin_file={file}" for file in self.gin_files]
        bindings = [f"--gin.{binding}" for binding in self.bindings]
        return [*files, f"--workdir={self.workdir}", *bindings]

    def summary(self) -> dict[str, Any]:
        """Its summary.json; empty if it is not finished.

        Raises UserError for one that is damaged, and where the folder has a run of other settings.
        """
        begun_with = read_whole(as_path(self.workdir) / "config.gin")
        if begun_with is not None and begun_with != self.experiment.text.encode():
            raise UserError(
                f"{self.workdir} was begun with other settings than this command has: give another "
                "--workdir, or the settings in its config.gin."
            )
        summary = read_summary(self.workdir)
        return summary if summary.get("step") == self.experiment.train.steps else {}


def plan(
    workdir: str,
    gin_files: Sequence[str],
    bindings: Sequence[str],
    seeds: int,
    points: Sequence[Point],
) -> list[Run]:
    """The checked runs of a sweep, the seeds 0, 1, … of a point one after the other.

    Raises UserError, which names the point, for one that cannot be read.
    """
    if seeds < 1:
        raise UserError(f"--seeds={seeds} must be at least 1.")
    runs: list[Run] = []
    for point in points:
        try:
            runs += _runs_of(point, workdir.rstrip("/"), gin_files, bindings, seeds)
        except UserError as error:
            raise UserError(f"point {point.name}: {error}") from None
    return runs


def _runs_of(
    point: Point, workdir: str, gin_files: Sequence[str], bindings: Sequence[str], seeds: int
) -> list[Run]:
    files = (*gin_files, *(value for key, value in point.settings if key == GIN_FILE))
    own = [f"{key}={value}" for key, value in point.settings if key != GIN_FILE]
    bound = (*bindings, *own)
    # The macro that sets the seed, if there is one: the task may have it too.
    macro = SEED_MACRO.search(read_experiment(files, bound).text)
    seed_key = macro[1] if macro else SEED
    swept = [*dict.fromkeys((seed_key, SEED)), *map(_key, own)]
    given = [*swept, *map(_key, bindings)]
    for name in swept:
        if given.count(name) > 1:
            raise UserError(f"{name} is set twice (by --over, --seeds or --gin): leave one out.")
    runs = []
    for seed in range(seeds):
        of_seed = (*bound, f"{seed_key}={seed}")
        folder = f"{workdir}/{point.name}/seed={seed}"
        runs.append(Run(point, seed, folder, files, of_seed, read_experiment(files, of_seed)))
    return runs


def _key(binding: str) -> str:
    """The setting or macro that a binding sets."""
    return binding.partition("=")[0].strip()


def grid(over: Sequence[str]) -> list[Point]:
    """Each combination of the values of `over`, the last of which changes fastest.

    Raises UserError for text that sets nothing and a value that is there twice; whether settings
    exist is not checked.
    """
    axes = []
    for text in over:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals:
            raise UserError(printable(f"--over {text} sets nothing: write --over {key}=VALUE."))
        axes.append([(key, value) for value in split(values)])
    keys = [axis[0][0] for axis in axes]
    fields = [key.rpartition(".")[2] for key in keys]
    short = [
        field if fields.count(field) == 1 else _safe(key)
        for key, field in zip(keys, fields, strict=True)
    ]
    points = [Point(_name(short, settings), settings) for settings in product(*axes)]
    names = [point.name for point in points]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--over gives point {name} twice: leave one out.")
    return points


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


def _name(short: Sequence[str], settings: Sequence[tuple[str, str]]) -> str:
    pairs = zip(short, settings, strict=True)
    name = ",".join(f"{own}={label(*setting)}" for own, setting in pairs) or UNCHANGED
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{zlib.crc32(name.encode()):08x}"


def label(key: str, text: str) -> str:
    """A value as a folder's name has it: the same for 1e-2 and 0.01."""
    if key == GIN_FILE:
        path = Path(text)
        return _safe(path.stem, text if str(path.parent) not in (".", FOLDER) else "")
    try:
        value = value_of(text)
    except ValueError:
        value = text
    items = value if type(value) is tuple else (value,)  # a Reference is a tuple, too
    return _safe("+".join(map(_word, items)))


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
