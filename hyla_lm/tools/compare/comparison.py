"""The comparison of runs as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hyla_lm.config.declare import wrong_choice
from hyla_lm.errors import UserError
from hyla_lm.tools.compare.budget import LN2, AtBudget, curves, losses_at, of_one_set
from hyla_lm.tools.compare.intervals import Interval, differences, holm
from hyla_lm.tools.compare.runs import BUDGETS, grouped, pairs, read_run

FEW_DOCUMENTS = 30
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class RunResult:
    """A run: its bits per byte at the budget, the steps that are taken for it, and its curve."""

    path: str
    seed: str
    bits_per_byte: float
    steps: tuple[int, ...]
    budgets: list[float]
    curve: list[float]


@dataclass(frozen=True)
class GroupResult:
    """Runs that differ only in the seed, and the mean of their bits per byte."""

    name: str
    settings: Mapping[str, str]
    bits_per_byte: float
    runs: list[RunResult]


@dataclass(frozen=True)
class PairResult:
    """Bits per byte of group `a` less those of `b`: below 0, `a` is better.

    `p_adjusted` is adjusted for the number of pairs, and decides the verdict.
    """

    a: str
    b: str
    difference: float
    over_documents: Interval
    over_seeds: Interval | None
    p_adjusted: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Groups of runs and the differences of their pairs, at one budget.

    `documents` counts those compared, `left_out` those that not all runs evaluated whole.
    """

    at: str
    budget: float
    set_name: str
    documents: int
    left_out: int
    groups: list[GroupResult]
    pairs: list[PairResult]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON."""
        return asdict(self)


def compare(
    workdirs: Sequence[str],
    at: str = "steps",
    set_name: str | None = None,
    baseline: str | None = None,
) -> Comparison:
    """See hyla_lm.compare."""
    if at not in BUDGETS:
        raise wrong_choice(f"--at={at}", BUDGETS)
    if len(workdirs) < 2:
        raise UserError("a comparison needs at least two runs: give their folders.")
    chosen, name = of_one_set([read_run(path) for path in workdirs], set_name)
    groups = grouped(chosen)
    compared = pairs(groups, baseline)
    runs = [run for group in groups for run in group.runs]
    losses = losses_at(runs, at, name)
    bits_R = losses.nats_RxN.sum(axis=1) / LN2 / losses.documents.bytes_N.sum()
    lines = curves(runs, name)
    results = [
        RunResult(run.path, run.seed, float(bits), steps, run.budgets(at).tolist(), line)
        for run, bits, steps, line in zip(runs, bits_R, losses.between_R, lines, strict=True)
    ]
    ends = np.cumsum([len(group.runs) for group in groups])
    members = [list(range(end - len(g.runs), end)) for g, end in zip(groups, ends, strict=True)]
    named = [
        GroupResult(g.name, g.different, float(bits_R[of].mean()), [results[i] for i in of])
        for g, of in zip(groups, members, strict=True)
    ]
    judged = _pair_results([group.name for group in groups], members, compared, losses)
    counts = len(losses.documents), losses.left_out
    notes = _notes(judged, named, losses)
    return Comparison(at, losses.budget, name, *counts, named, judged, notes)


def _pair_results(
    names: Sequence[str],
    members: Sequence[Sequence[int]],
    compared: Sequence[tuple[int, int]],
    losses: AtBudget,
) -> list[PairResult]:
    """The result of each pair of groups, which have names and list their runs among R."""
    estimates = differences(losses.nats_RxN, losses.documents.bytes_N, members, compared)
    adjusted = holm([(one.over_seeds or one.over_documents).p for one in estimates])
    results = []
    for (a, b), one, p in zip(compared, estimates, adjusted, strict=True):
        verdict = "no difference found"
        if p < SIGNIFICANT:
            better = names[a] if one.value < 0 else names[b]
            verdict = f"{better} is better by {abs(one.value):.4f} bits per byte"
        intervals = one.over_documents, one.over_seeds
        results.append(PairResult(names[a], names[b], one.value, *intervals, p, verdict))
    return results


def _notes(
    judged: Sequence[PairResult], groups: Sequence[GroupResult], losses: AtBudget
) -> list[str]:
    """What a reader must know of these figures, a sentence each."""
    notes = []
    if len(judged) > 1:
        notes.append(f"{len(judged)} comparisons: p-values are adjusted for their number (Holm).")
    if not judged:
        notes.append("No difference found: all runs are of one config, and differ in the seed.")
    if any(pair.over_seeds is None for pair in judged):
        notes.append(
            "A group of one run is compared over documents only, which says nothing of other seeds."
        )
    if any(len(run.steps) > 1 for group in groups for run in group.runs):
        notes.append("Where no evaluation fell on the budget, losses are linear between two.")
    if len(losses.documents) < FEW_DOCUMENTS:
        notes.append(f"{len(losses.documents)} documents are few: intervals are too narrow.")
    if losses.left_out:
        notes.append(
            f"{losses.left_out:,} documents are left out, which not all runs evaluated whole."
        )
    return notes
