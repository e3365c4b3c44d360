"""The runs of a sweep, one for each point and seed: their configuration, read before any trains."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.storage import as_path, read_whole
from hyla_lm.tools.sweep.points import Point, key_of

SEED = "TrainConfig.seed"
SEED_MACRO = re.compile(rf"^{re.escape(SEED)} = %(\w+)$", re.M)


@dataclass(frozen=True)
class Base:
    """What all runs of a sweep have, and the number of seeds of each point: 0, 1 and so on."""

    workdir: str
    gin_files: tuple[str, ...]
    bindings: tuple[str, ...]
    seeds: int


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
        return name_of(self.point, self.seed)

    @property
    def arguments(self) -> list[str]:
        """The arguments after `hyla-lm train`."""
        files = [f"--gin_file={file}" for file in self.gin_files]
        bindings = [f"--gin.{binding}" for binding in self.bindings]
        return [*files, f"--workdir={self.workdir}", *bindings]

    def summary(self) -> dict[str, Any]:
        """Its summary.json; empty if it is not finished. Raises UserError for a damaged one."""
        path = as_path(self.workdir) / "summary.json"
        try:
            found = json.loads(read_whole(path) or b"{}")
            return found if found.get("step") == self.experiment.train.steps else {}
        except (ValueError, AttributeError):
            raise UserError(f"{path} is damaged: delete it, or restore the file.") from None

    def check_unchanged(self) -> None:
        """Raises UserError if the folder has a run with other settings."""
        content = read_whole(as_path(self.workdir) / "config.gin")
        if content is None or content == self.experiment.text.encode():
            return
        was, now = content.decode(errors="replace"), self.experiment.text
        raise UserError(
            f"{self.workdir} was begun with {_only_in(was, now)} and this command has "
            f"{_only_in(now, was)}: give another --workdir, or the settings that it was begun with."
        )


def name_of(point: Point, seed: int) -> str:
    """The folder of a run in that of the sweep."""
    return f"{point.name}/seed={seed}"


def plan(base: Base, points: Sequence[Point]) -> list[Run]:
    """The checked runs of a sweep, the seeds of a point one after the other.

    Raises UserError, which names the point, for one that cannot be read or is there twice.
    """
    if base.seeds < 1:
        raise UserError(f"--seeds={base.seeds} must be at least 1.")
    _check_base(base, points)
    runs = [run for point in points for run in _runs(base, point)]
    first: dict[Experiment, Point] = {}
    for run in runs:
        known = first.setdefault(run.experiment, run.point)
        if known is not run.point:
            raise UserError(
                f"points {known.name} and {run.point.name} train the same: leave one out."
            )
    return runs


def _check_base(base: Base, points: Sequence[Point]) -> None:
    swept = {value.key for point in points for value in point.values}
    for binding in base.bindings:
        if key_of(binding) in swept:
            raise UserError(
                f"{key_of(binding)} is swept and set by --gin.{binding}: leave one of them out."
            )


def _runs(base: Base, point: Point) -> list[Run]:
    files = (*base.gin_files, *point.gin_files)
    bindings = (*base.bindings, *point.bindings)
    try:
        key = _seed_key(read_experiment(files, bindings), bindings)
        return [_run(base, point, seed, key, files, bindings) for seed in range(base.seeds)]
    except UserError as error:
        raise UserError(f"point {point.name}: {error}") from None


def _run(
    base: Base,
    point: Point,
    seed: int,
    key: str,
    files: tuple[str, ...],
    bindings: tuple[str, ...],
) -> Run:
    bindings = (*bindings, f"{key}={seed}")
    workdir = f"{base.workdir.rstrip('/')}/{name_of(point, seed)}"
    return Run(point, seed, workdir, files, bindings, read_experiment(files, bindings))


def _seed_key(experiment: Experiment, bindings: Sequence[str]) -> str:
    """What sets the seed of a run: the macro that TrainConfig.seed is, or else itself."""
    macro = SEED_MACRO.search(experiment.text)
    key = macro[1] if macro else SEED
    for binding in bindings:
        if key_of(binding) in (key, SEED):
            raise UserError(f"{binding} sets what --seeds sets: leave it out.")
    return key


def _only_in(text: str, other: str) -> str:
    """The first line that only one of two gin texts has."""
    own = [line for line in text.splitlines() if line not in other.splitlines()]
    return own[0] if own else "nothing of it"
