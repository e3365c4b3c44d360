"""Losses of the same documents at the same budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.packing import Documents
from hyla_lm.run.evaluation import rows_of
from hyla_lm.tools.compare.runs import ReadRun

LN2 = float(np.log(2))
PLACE_BITS = 24


@dataclass(frozen=True)
class AtBudget:
    """Losses of N documents by R runs at one budget.

    `documents` has their places and bytes, `between_R` the steps whose losses were averaged for a
    run whose evaluations lie on either side, and `left_out` counts documents that not all have.
    """

    budget: float
    nats_RxN: np.ndarray
    documents: Documents
    between_R: Sequence[tuple[int, ...]]
    left_out: int


def of_one_set(runs: Sequence[ReadRun], set_name: str | None) -> tuple[list[ReadRun], str]:
    """The runs with their evaluations of a set, by default of the first, and its name.

    Raises UserError for runs that have no losses, or other validation rows or tokenizer.
    """
    for run in runs:
        if not run.evaluations:
            raise UserError(
                f"{run.path} has no losses by document: train it with "
                "LanguageModel.document_losses = True, or evaluate it by hyla-lm evaluate "
                f"--follow --workdir={run.path} --gin.LanguageModel.document_losses=True."
            )
    name = next(iter(runs[0].evaluations[-1].sets)) if set_name is None else set_name
    _check_same_documents(runs, name)
    of_set = [replace(r, evaluations=[e for e in r.evaluations if name in e.sets]) for r in runs]
    for run, chosen in zip(runs, of_set, strict=True):
        if not chosen.evaluations:
            known = ", ".join(repr(other) for other in run.evaluations[-1].sets)
            raise UserError(
                f"{run.path} has no validation set {name!r} (it has {known}): change --set."
            )
    return of_set, name


def _check_same_documents(runs: Sequence[ReadRun], set_name: str) -> None:
    first = runs[0]
    for run in runs[1:]:
        ours, theirs = first.facts["identity"], run.facts["identity"]
        both = [
            name for name in ("tokenizer", rows_of(set_name)) if name in ours and name in theirs
        ]
        other = [name for name in both if ours[name] != theirs[name]]
        if other:
            raise UserError(
                f"{run.path} and {first.path} differ in their {other[0]}, so their documents are "
                "not the same: compare runs of one tokenizer and validation set."
            )


def losses_at(runs: Sequence[ReadRun], at: str, set_name: str) -> AtBudget:
    """Each document's loss at the largest budget that all runs reached.

    It is linear between two evaluations; raises UserError for a run without one at or before it.
    """
    spent = [run.budgets(at) for run in runs]
    budget = float(min(each.max() for each in spent))
    for run, each in zip(runs, spent, strict=True):
        if each.min() > budget:
            raise UserError(
                f"{run.path} was first evaluated at {each.min():,.0f} {at}, where another run had "
                f"ended at {budget:,.0f}: give another --at or leave one out."
            )
    taken = [_around(run, at, set_name, budget) for run in runs]
    every = [documents for parts in taken for _, _, documents in parts]
    shared = shared_documents(every)
    left_out = max(map(len, every)) - len(shared[0])
    losses = iter(one.nats_N for one in shared)
    nats = [sum(share * next(losses) for share, _, _ in parts) for parts in taken]
    between = [tuple(step for _, step, _ in parts) for parts in taken]
    return AtBudget(budget, np.stack(nats), shared[0], between, left_out)


def shared_documents(every: Sequence[Documents]) -> list[Documents]:
    """Of each, the documents that all have, equally whole; raises UserError where there are none.

    A periodic evaluation may be of some rows only, and cut the document at their end.
    """
    shared = reduce(np.intersect1d, map(_keys, every))
    common = [one.take(np.searchsorted(_keys(one), shared)) for one in every]
    is_same = np.all([one.tokens_N == common[0].tokens_N for one in common], axis=0)
    if is_same.sum() < 2:
        raise UserError(
            "the runs have fewer than two whole validation documents in common: raise "
            "LanguageModel.validation_rows."
        )
    return [one.take(is_same) for one in common]


def _around(
    run: ReadRun, at: str, set_name: str, budget: float
) -> list[tuple[float, int, Documents]]:
    """The evaluations around a budget, each with its share and step."""
    spent = run.budgets(at)
    after = int(np.searchsorted(spent, budget * (1 - 1e-12)))
    later = run.evaluations[after]
    if np.isclose(spent[after], budget, rtol=1e-9):
        return [(1.0, later.step, later.sets[set_name])]
    share = float((budget - spent[after - 1]) / (spent[after] - spent[after - 1]))
    before = run.evaluations[after - 1]
    return [
        (1 - share, before.step, before.sets[set_name]),
        (share, later.step, later.sets[set_name]),
    ]


def _keys(documents: Documents) -> np.ndarray:
    """A number for the place where each document begins, in order."""
    return (documents.row_N << PLACE_BITS) + documents.place_N + 1


def curves(runs: Sequence[ReadRun], set_name: str) -> list[list[float]]:
    """Bits per byte of each run's evaluations over the documents of all of them."""
    every = [evaluation.sets[set_name] for run in runs for evaluation in run.evaluations]
    shared = shared_documents(every)
    bits = iter([float(one.nats_N.sum() / LN2 / one.bytes_N.sum()) for one in shared])
    return [[next(bits) for _ in run.evaluations] for run in runs]
