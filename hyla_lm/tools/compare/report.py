"""The report of a comparison: tables as text, and a picture."""

import io
from collections.abc import Sequence

from hyla_lm.errors import UserError
from hyla_lm.package import install
from hyla_lm.tools.compare.comparison import Comparison, PairResult
from hyla_lm.tools.compare.intervals import Interval, p_text
from hyla_lm.tools.compare.runs import BUDGETS
from hyla_lm.tools.output import plain

Table = list[tuple[str, ...]]


def text(comparison: Comparison) -> str:
    """What is compared, tables of groups and pairs, and what they say in words."""
    of_set = f" of the set {comparison.set_name!r}" if comparison.set_name else ""
    basis = (
        f"{comparison.documents:,} validation documents{of_set}, at {comparison.budget:,.6g} "
        f"{BUDGETS[comparison.at]}"
    )
    groups: Table = [("group", "bits per byte", "by seed")]
    for group in comparison.groups:
        seeds = ", ".join(f"{run.seed}: {run.bits_per_byte:.4f}" for run in group.runs)
        groups.append((group.name, f"{group.bits_per_byte:.4f}", seeds))
    lines = [basis, "", *plain(groups), ""]
    if comparison.pairs:
        lines += [*plain(_pair_table(comparison.pairs)), ""]
    verdicts = [f"{pair.a} against {pair.b}: {pair.verdict}" for pair in comparison.pairs]
    return "\n".join([*lines, *verdicts, *comparison.notes])


def _pair_table(pairs: Sequence[PairResult]) -> Table:
    rows = [
        (
            f"{pair.a} − {pair.b}",
            f"{pair.difference:+.4f}",
            _between(pair.over_documents),
            _between(pair.over_seeds) if pair.over_seeds else "one seed",
            p_text(pair.p_adjusted),
        )
        for pair in pairs
    ]
    return [("pair", "difference", "95 % over documents", "over seeds too", "p"), *rows]


def _between(interval: Interval) -> str:
    return f"{interval.low:+.4f} to {interval.high:+.4f}"


def draw(comparison: Comparison) -> bytes:
    """A PNG: the curve of each run, in the colour of its group.

    Raises UserError where matplotlib is not installed, which is optional.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"pictures need matplotlib: {install('plots')}.") from error
    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, group in enumerate(comparison.groups):
        for run in group.runs:
            label = group.name if run is group.runs[0] else None
            axes.plot(run.budgets, run.curve, "o-", ms=3, color=f"C{number}", label=label)
    axes.axvline(comparison.budget, color="0.5", lw=0.8, ls=":")
    axes.set(xlabel=BUDGETS[comparison.at], ylabel="validation bits per byte")
    axes.grid(alpha=0.3)
    axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
