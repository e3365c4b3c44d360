"""The comparison of runs as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hyla_lm.config.declare import wrong_choice
from hyla_lm.errors import UserError
from hyla_lm.run.restored import open_run
from hyla_lm.tools.compare.budget import LN2, AtBudget, curves, losses_at, of_one_set
from hyla_lm.tools.compare.groups import SEED, Group, grouped, pairs
from hyla_lm.tools.compare.intervals import Difference, Interval, differences, holm
from hyla_lm.tools.compare.runs import BUDGETS, ReadRun, read_run, value_of
from hyla_lm.tools.compare.texts import texts_of

SWITCH = "LanguageModel.document_losses"
MOST_DOCUMENTS = 8
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
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class GroupResult:
    """Runs that differ in the seed alone, and the mean of their bits per byte."""

    name: str
    settings: Mapping[str, str]
    bits_per_byte: float
    runs: list[RunResult]


@dataclass(frozen=True)
class DocumentResult:
    """A document: its place, bits by which the pair differs on it, and its text if it is known."""

    row: int
    place: int
    bytes: float
    bits: float
    text: str = ""


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
    documents: list[DocumentResult]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs and the differences of their pairs, at one budget.

    `documents` counts those compared, `left_out` those that not all runs saw whole, and `in_curves`
    those that every evaluation saw.
    """

    at: str
    budget: float
    set_name: str
    documents: int
    left_out: int
    in_curves: int
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
    evaluate: bool = False,
    trust_imports: bool = False,
    with_texts: bool = False,
) -> Comparison:
    """See hyla_lm.compare; `with_texts` adds the texts of documents, as far as they are at hand."""
    if at not in BUDGETS:
        raise wrong_choice(f"--at={at}", at, BUDGETS)
    if len(workdirs) < 2:
        raise UserError("a comparison needs at least two runs: give their folders.")
    every = [_with_losses(read_run(path), evaluate, trust_imports) for path in workdirs]
    runs, name = of_one_set(every, set_name)
    groups = grouped(runs)
    ordered = [run for group in groups for run in group.runs]
    compared = pairs(groups, baseline)
    losses = losses_at(ordered, at, name)
    found = _compared(groups, ordered, compared, losses, at, name)
    return _with_texts(found, ordered[0], trust_imports) if with_texts else found


def _with_losses(run: ReadRun, evaluate: bool, trust_imports: bool) -> ReadRun:
    """The run; with `evaluate` the losses of its newest checkpoint, where it kept none."""
    if run.evaluations or not evaluate:
        return run
    switch_on = [f"{SWITCH} = True"] if SWITCH in run.settings else []
    opened = open_run(run.path, bindings=switch_on, trust_imports=trust_imports)
    losses = opened.evaluation().documents
    if losses is None:
        raise UserError(f"{run.path} holds no language model: give runs of one.")
    return replace(run, evaluations=[losses])


def _compared(
    groups: Sequence[Group],
    runs: Sequence[ReadRun],
    compared: Sequence[tuple[int, int]],
    losses: AtBudget,
    at: str,
    set_name: str,
) -> Comparison:
    ends = np.cumsum([len(group.runs) for group in groups])
    indices = [list(range(end - len(g.runs), end)) for g, end in zip(groups, ends, strict=True)]
    bytes_N = losses.documents.bytes_N
    found = differences(losses.nats_RxN, bytes_N, indices, compared)
    adjusted = holm([_deciding(one).p for one in found])
    bits_R = losses.nats_RxN.sum(axis=1) / LN2 / bytes_N.sum()
    lines, in_curves = curves(runs, set_name)
    results = [
        _run_result(run, float(bits), steps, at, line)
        for run, bits, steps, line in zip(runs, bits_R, losses.between_R, lines, strict=True)
    ]
    named = [
        GroupResult(g.name, g.different, float(bits_R[of].mean()), [results[i] for i in of])
        for g, of in zip(groups, indices, strict=True)
    ]
    tables = [losses.nats_RxN[of].mean(axis=0) / LN2 for of in indices]
    judged = [
        _pair_result(groups[a].name, groups[b].name, one, p, tables[a] - tables[b], losses)
        for (a, b), one, p in zip(compared, found, adjusted, strict=True)
    ]
    counts = len(bytes_N), losses.left_out, in_curves
    notes = _notes(judged, named, losses)
    return Comparison(at, losses.budget, set_name, *counts, named, judged, notes)


def _deciding(found: Difference) -> Interval:
    return found.over_seeds or found.over_documents


def _run_result(
    run: ReadRun, bits: float, steps: tuple[int, ...], at: str, line: list[float]
) -> RunResult:
    return RunResult(
        run.path,
        value_of(run.settings, SEED),
        bits,
        steps,
        run.budgets(at).tolist(),
        line,
        run.facts["environment"],
    )


def _pair_result(
    a: str, b: str, found: Difference, p: float, bits_N: np.ndarray, losses: AtBudget
) -> PairResult:
    order = np.argsort(bits_N, kind="stable")
    most = np.unique(np.concatenate([order[:MOST_DOCUMENTS], order[-MOST_DOCUMENTS:]]))
    documents = sorted((_document(losses, bits_N, n) for n in most), key=lambda one: one.bits)
    verdict = "no difference found"
    if p < SIGNIFICANT:
        better = a if found.value < 0 else b
        verdict = f"{better} is better by {abs(found.value):.4f} bits per byte"
    return PairResult(
        a, b, found.value, found.over_documents, found.over_seeds, p, verdict, documents
    )


def _document(losses: AtBudget, bits_N: np.ndarray, n: int) -> DocumentResult:
    d = losses.documents
    return DocumentResult(int(d.row_N[n]), int(d.place_N[n]), float(d.bytes_N[n]), float(bits_N[n]))


def _notes(
    judged: Sequence[PairResult], groups: Sequence[GroupResult], losses: AtBudget
) -> list[str]:
    """What a reader must know of these figures, a sentence each."""
    count, notes = len(judged), []
    if count > 1:
        notes.append(f"{count} comparisons: p-values are adjusted for their number (Holm).")
    if not judged:
        notes.append(_of_one_config([run.bits_per_byte for run in groups[0].runs]))
    if any(pair.over_seeds is None for pair in judged):
        notes.append(
            "Groups of one run each are compared over documents alone, which says nothing of "
            "other seeds."
        )
    if judged and any(1 < len(group.runs) < 4 for group in groups):
        notes.append("With two or three seeds the interval over seeds is wide and rough.")
    if any(len(run.steps) > 1 for group in groups for run in group.runs):
        notes.append("Where no evaluation fell on the budget, losses are linear between two.")
    if len(losses.documents) < FEW_DOCUMENTS:
        notes.append(f"{len(losses.documents)} documents are few: intervals are too narrow.")
    if losses.left_out:
        notes.append(f"{losses.left_out:,} documents are left out, which not all runs saw whole.")
    return notes


def _of_one_config(bits_R: Sequence[float]) -> str:
    apart, deviation = max(bits_R) - min(bits_R), float(np.std(bits_R, ddof=1))
    return (
        "No difference found: all runs are of one config. Their seeds alone set them up to "
        f"{apart:.4f} bits per byte apart (standard deviation {deviation:.4f})."
    )


def _with_texts(found: Comparison, run: ReadRun, trust_imports: bool) -> Comparison:
    """The comparison with the texts of its documents, or a note why they cannot be read."""
    wanted = {(d.row, d.place) for pair in found.pairs for d in pair.documents}
    try:
        texts = texts_of(run, found.set_name, wanted, trust_imports)
    except UserError as error:
        note = f"The texts of documents could not be read: {error}"
        return replace(found, notes=[*found.notes, note])
    return replace(
        found,
        pairs=[
            replace(
                pair, documents=[replace(d, text=texts[d.row, d.place]) for d in pair.documents]
            )
            for pair in found.pairs
        ],
    )
