"""The report of a comparison: tables as text, and a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hyla_lm.tools.compare.comparison import Comparison, GroupResult, PairResult
from hyla_lm.tools.compare.intervals import Interval
from hyla_lm.tools.compare.runs import BUDGETS
from hyla_lm.tools.output import new_figure, plain, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table = list[tuple[str, ...]]


def text(comparison: Comparison) -> str:
    """What is compared, tables of groups and pairs, and what they say in words."""
    of_set = f" of the set {comparison.set_name!r}" if comparison.set_name else ""
    basis = (
        f"{comparison.documents:,} validation documents{of_set}, at {comparison.budget:,.6g} "
        f"{BUDGETS[comparison.at]}"
    )
    lines = [basis, "", *plain(_group_table(comparison.groups)), ""]
    if comparison.pairs:
        lines += [*plain(_pair_table(comparison.pairs)), ""]
    verdicts = [f"{pair.a} against {pair.b}: {pair.verdict}" for pair in comparison.pairs]
    return "\n".join([*lines, *verdicts, *comparison.notes])


def _group_table(groups: Sequence[GroupResult]) -> Table:
    rows = []
    for group in groups:
        seeds = ", ".join(f"{run.seed}: {run.bits_per_byte:.4f}" for run in group.runs)
        rows.append((group.name, f"{group.bits_per_byte:.4f}", seeds))
    return [("group", "bits per byte", "by seed"), *rows]


def _pair_table(pairs: Sequence[PairResult]) -> Table:
    rows = [
        (
            f"{pair.a} − {pair.b}",
            f"{pair.difference:+.4f}",
            _between(pair.over_documents),
            _between(pair.over_seeds) if pair.over_seeds else "one seed each",
            f"{pair.p_adjusted:.3g}",
        )
        for pair in pairs
    ]
    return [("pair", "difference", "95 % over documents", "over seeds too", "p"), *rows]


def _between(interval: Interval) -> str:
    return f"{interval.low:+.4f} to {interval.high:+.4f}"


def draw(comparison: Comparison) -> bytes:
    """A PNG: validation curves of the groups, and differences of the pairs with intervals."""
    columns = 2 if comparison.pairs else 1
    figure = new_figure(5.5 * columns, max(3.6, 0.55 * len(comparison.pairs) + 1))
    curves, *forest = figure.subplots(1, columns, squeeze=False)[0]
    _curves(curves, comparison)
    for axes in forest:
        _forest(axes, comparison.pairs)
    return png(figure)


def _curves(axes: "Axes", comparison: Comparison) -> None:
    """The mean of each group, and a band from its best to its worst run."""
    for number, group in enumerate(comparison.groups):
        budgets, values_RxE = _curve_of(group)
        low, high, colour = values_RxE.min(axis=0), values_RxE.max(axis=0), f"C{number}"
        axes.plot(budgets, values_RxE.mean(axis=0), "o-", ms=3, color=colour, label=group.name)
        axes.fill_between(budgets, low, high, color=colour, alpha=0.18)
    axes.axvline(comparison.budget, color="0.5", lw=0.8, ls=":")
    axes.set(xlabel=BUDGETS[comparison.at], ylabel="validation bits per byte")
    axes.grid(alpha=0.3)
    axes.legend()


def _curve_of(group: GroupResult) -> tuple[np.ndarray, np.ndarray]:
    """The budgets that all runs of a group have reached, E, and their bits per byte, RxE."""
    first = max(run.budgets[0] for run in group.runs)
    last = min(run.budgets[-1] for run in group.runs)
    every = np.unique(np.concatenate([run.budgets for run in group.runs]))
    budgets = every[(every >= first) & (every <= last)]
    return budgets, np.stack([np.interp(budgets, run.budgets, run.curve) for run in group.runs])


def _forest(axes: "Axes", pairs: Sequence[PairResult]) -> None:
    """The difference of each pair, with the interval over seeds where there are seeds."""
    for row, pair in enumerate(pairs):
        whole, inner = pair.over_seeds or pair.over_documents, pair.over_documents
        axes.plot([whole.low, whole.high], [row, row], color="0.15", lw=1.6)
        axes.plot([inner.low, inner.high], [row, row], color="0.15", lw=5, alpha=0.35)
        axes.plot([pair.difference], [row], "o", color="0.15")
        beside = axes.get_yaxis_transform()
        axes.text(0.02, row - 0.18, f"{pair.a} − {pair.b}", transform=beside, va="bottom")
    axes.axvline(0, color="0.5", lw=0.8)
    axes.set(yticks=[], ylim=(len(pairs) - 0.5, -0.7))
    axes.set(xlabel="difference in bits per byte, 95 % intervals\n(thick: over documents only)")
    axes.grid(alpha=0.3, axis="x")
