"""The runs that are compared: settings and losses of each, and groups that differ in the seed.

Runs whose settings differ only in the seed are a group, named by the settings that differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
from etils import epath

import hyla_lm.config.experiment  # noqa: F401  makes the classes and their defaults known
from hyla_lm.config.gin_files import read_settings, value_of
from hyla_lm.errors import UserError
from hyla_lm.run.evaluation import DocumentLosses, read_documents
from hyla_lm.run.folder import EVALUATOR, read_lines
from hyla_lm.run.summary import last_metrics_and_speed
from hyla_lm.storage import as_path, read_whole

BUDGETS = {
    "steps": "steps",
    "tokens": "training tokens",
    "flops": "training FLOPs by formula",
    "seconds": "seconds of stepping",
}
SEED = "TrainConfig.seed"
MOST_NAMED = 3
LONGEST_NAME = 48


@dataclass(frozen=True)
class ReadRun:
    """A run with saved losses: its settings by name and its evaluations by step."""

    path: str
    settings: Mapping[str, str]
    evaluations: Sequence[DocumentLosses]

    @property
    def name(self) -> str:
        return PurePath(self.path).name

    @property
    def seed(self) -> str:
        return value_of(self.settings, SEED)

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.evaluations[-1].facts

    @cached_property
    def seconds_per_step(self) -> float:
        """The mean of its lines; raises UserError if they have no times."""
        if seconds := last_metrics_and_speed(read_lines(self.path))[1]:
            return seconds
        raise UserError(
            f"{self.path} has no perf/step_seconds in metrics.jsonl: give another --at."
        )

    def budgets(self, at: str) -> np.ndarray:
        """What each evaluation's step had cost; raises UserError where seconds are not known."""
        steps = np.array([evaluation.step for evaluation in self.evaluations], np.float64)
        if at == "steps":
            return steps
        if at == "seconds":
            return steps * self.seconds_per_step
        tokens = [evaluation.facts["tokens_per_step"] for evaluation in self.evaluations]
        spent = np.cumsum(np.diff(steps, prepend=0) * tokens)
        return spent if at == "tokens" else spent * self.facts["flops_per_token"]


def read_run(workdir: str) -> ReadRun:
    """A run's folder, with its evaluations; raises UserError for no run."""
    path = as_path(workdir)
    config = read_whole(path / "config.gin")
    if config is None:
        raise UserError(f"{workdir} holds no run: give folders of trained runs.")
    evaluations = {**_losses(path / EVALUATOR), **_losses(path)}
    settings = read_settings(config.decode(errors="replace"), str(path / "config.gin"))
    return ReadRun(str(path), settings, [evaluations[step] for step in sorted(evaluations)])


def _losses(folder: epath.Path) -> dict[int, DocumentLosses]:
    """The losses of each evaluation of which a line stands in a folder's metrics.jsonl."""
    steps = {
        line["step"]
        for line in read_lines(folder)
        if any(tag.startswith("validation/") for tag in line)
    }
    losses = {step: read_documents(folder, step) for step in steps}
    return {step: one for step, one in losses.items() if one is not None}


@dataclass(frozen=True)
class Group:
    """Runs of one configuration; `different` are the settings in which groups differ."""

    name: str
    runs: Sequence[ReadRun]
    different: Mapping[str, str]


def grouped(runs: Sequence[ReadRun]) -> list[Group]:
    """The groups, in the order of their first runs; raises UserError for a seed twice."""
    names = sorted({name for run in runs for name in run.settings if name != SEED})
    values = [{name: value_of(run.settings, name) for name in names} for run in runs]
    different = [name for name in names if len({each[name] for each in values}) > 1]
    members: dict[tuple[str, ...], list[ReadRun]] = {}
    for run, each in zip(runs, values, strict=True):
        members.setdefault(tuple(each[name] for name in different), []).append(run)
    groups = []
    for key, of in members.items():
        settings = dict(zip(different, key, strict=True))
        twice = [run.path for run in of if [other.seed for other in of].count(run.seed) > 1]
        if twice:  # they would pass for two seeds that agree
            raise UserError(
                f"{' and '.join(twice)} have one configuration and one seed: give one of them."
            )
        groups.append(Group(_name(settings, of), of, settings))
    if len({group.name for group in groups}) == len(groups):
        return groups
    return [Group(", ".join(r.path for r in g.runs), g.runs, g.different) for g in groups]


def _name(different: Mapping[str, str], runs: Sequence[ReadRun]) -> str:
    """The settings, such as attention=hyla; a folder's name where they are too many or none."""
    fields = [name.rpartition(".")[2] for name in different]
    named = ", ".join(
        f"{field if fields.count(field) == 1 else name}={value.strip(chr(39))}"
        for field, (name, value) in zip(fields, different.items(), strict=True)
    )
    if 0 < len(different) <= MOST_NAMED and len(named) <= LONGEST_NAME:
        return named
    others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"{runs[0].name}{others}"


def pairs(groups: Sequence[Group], baseline: str | None) -> list[tuple[int, int]]:
    """Which groups are compared: all pairs, or every other group with the baseline.

    Raises UserError for a baseline that names no group, run or folder.
    """
    if len(groups) == 1:
        return []
    if baseline is None:
        return [(a, b) for a in range(len(groups)) for b in range(a + 1, len(groups))]
    for base, group in enumerate(groups):
        known = {group.name, *(run.name for run in group.runs), *(run.path for run in group.runs)}
        if baseline.rstrip("/") in known:
            return [(other, base) for other in range(len(groups)) if other != base]
    names = ", ".join(group.name for group in groups)
    raise UserError(f"--baseline={baseline} is none of the runs or groups ({names}): give one.")
