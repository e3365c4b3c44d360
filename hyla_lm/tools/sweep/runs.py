"""The runs of a sweep, one for each point and seed: their configuration, read before any trains."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.run.folder import read_summary
from hyla_lm.storage import as_path, read_whole
from hyla_lm.tools.sweep.points import Point

SEED = "TrainConfig.seed"
SEED_MACRO = re.compile(rf"^{re.escape(SEED)} = %(\w+)$", re.M)


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
        """Its summary.json; empty if it is not finished. Raises UserError for a damaged one."""
        summary = read_summary(self.workdir)
        return summary if summary.get("step") == self.experiment.train.steps else {}

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


def plan(
    workdir: str,
    gin_files: Sequence[str],
    bindings: Sequence[str],
    seeds: int,
    points: Sequence[Point],
) -> list[Run]:
    """The checked runs of a sweep, the seeds 0, 1, … of a point one after the other.

    Raises UserError, which names the point, for one that cannot be read or is there twice.
    """
    if seeds < 1:
        raise UserError(f"--seeds={seeds} must be at least 1.")
    runs: list[Run] = []
    for point in points:
        try:
            runs += _runs_of(point, workdir.rstrip("/"), gin_files, bindings, seeds)
        except UserError as error:
            raise UserError(f"point {point.name}: {error}") from None
    first: dict[Experiment, Point] = {}
    for run in runs:
        known = first.setdefault(run.experiment, run.point)
        if known is not run.point:
            raise UserError(
                f"points {known.name} and {run.point.name} train the same: leave one out."
            )
    return runs


def _runs_of(
    point: Point, workdir: str, gin_files: Sequence[str], bindings: Sequence[str], seeds: int
) -> list[Run]:
    files = (*gin_files, *point.gin_files)
    bound = (*bindings, *point.bindings)
    key = _seed_key(read_experiment(files, bound))
    swept = [key, SEED, *map(_key, point.bindings)]
    given = [*dict.fromkeys(swept[:2]), *swept[2:], *map(_key, bindings)]
    for name in swept:
        if given.count(name) > 1:
            raise UserError(
                f"{name} is set twice (by --over, --point, --seeds or --gin): leave one out."
            )
    runs = []
    for seed in range(seeds):
        own = (*bound, f"{key}={seed}")
        folder = f"{workdir}/{point.name}/seed={seed}"
        runs.append(Run(point, seed, folder, files, own, read_experiment(files, own)))
    return runs


def _seed_key(experiment: Experiment) -> str:
    """What sets the seed of a run: the macro that TrainConfig.seed is, or else itself."""
    macro = SEED_MACRO.search(experiment.text)
    return macro[1] if macro else SEED


def _key(binding: str) -> str:
    """The setting or macro that a binding sets."""
    return binding.partition("=")[0].strip()


def _only_in(text: str, other: str) -> str:
    """The first line that only one of two gin texts has."""
    own = [line for line in text.splitlines() if line not in other.splitlines()]
    return own[0] if own else "nothing of it"
