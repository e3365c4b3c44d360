"""Runs that differ in the seed alone are a group, named by the settings that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hyla_lm.errors import UserError
from hyla_lm.tools.compare.runs import ReadRun, value_of

SEED = "TrainConfig.seed"
MOST_NAMED = 3
LONGEST_NAME = 48


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
    found: dict[tuple[str, ...], list[ReadRun]] = {}
    for run, each in zip(runs, values, strict=True):
        found.setdefault(tuple(each[name] for name in different), []).append(run)
    groups = []
    for key, of in found.items():
        settings = dict(zip(different, key, strict=True))
        _check_seeds(of)
        groups.append(Group(_name(settings, of), of, settings))
    if len({group.name for group in groups}) == len(groups):
        return groups
    return [Group(", ".join(r.path for r in g.runs), g.runs, g.different) for g in groups]


def _check_seeds(runs: Sequence[ReadRun]) -> None:
    """Raises UserError for two runs of one seed, which would pass for two seeds that agree."""
    seen: dict[str, str] = {}
    for run in runs:
        seed = value_of(run.settings, SEED)
        if seed in seen:
            raise UserError(
                f"{seen[seed]} and {run.path} have one configuration and one seed ({seed}): give "
                "one of them."
            )
        seen[seed] = run.path


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
