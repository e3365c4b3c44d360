"""The report of a comparison: a picture, and a page of HTML that needs nothing else."""

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from hyla_lm.config.gin_files import Written
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.storage import as_path, read_whole
from hyla_lm.tasks.language_model import LanguageModelTask
from hyla_lm.tools.compare import intervals
from hyla_lm.tools.compare.comparison import Comparison, DocumentResult, GroupResult, PairResult
from hyla_lm.tools.compare.intervals import Interval
from hyla_lm.tools.compare.runs import BUDGETS
from hyla_lm.tools.output import new_figure, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 400  # characters of a document's text
MOST_TOKENS = 400  # of which a piece has at least one character, but for bytes
STYLE = """
:root { color-scheme: light dark }
body { margin: 2em auto; max-width: 70em; padding: 0 1em; font: 15px/1.5 system-ui, sans-serif }
img { max-width: 100%; background: white }
th, td { text-align: left; vertical-align: top; padding: .3em 1.2em .3em 0 }
td { white-space: pre-wrap; overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
pre { white-space: pre-wrap }
"""
Position = tuple[int, int]
Table = list[tuple[str, ...]]


def with_texts(comparison: Comparison, trust_imports: bool) -> Comparison:
    """The comparison with the texts of its documents, or with a note why they cannot be read."""
    wanted = {(d.row, d.place) for pair in comparison.pairs for d in pair.documents}
    path = comparison.groups[0].runs[0].path
    try:
        texts = texts_of(path, comparison.set_name, wanted, trust_imports)
    except UserError as error:
        note = f"The texts of documents could not be read: {error}"
        return replace(comparison, notes=[*comparison.notes, note])

    def named(pair: PairResult) -> PairResult:
        return replace(
            pair, documents=[replace(d, text=texts[d.row, d.place]) for d in pair.documents]
        )

    return replace(comparison, pairs=[named(pair) for pair in comparison.pairs])


def texts_of(
    workdir: str, set_name: str, wanted: Collection[Position], trust_imports: bool
) -> dict[Position, str]:
    """The beginning of each document, by the row and place where it begins, of a run's rows.

    Raises UserError where rows or tokenizer are not where the run's config.gin says.
    """
    config = as_path(workdir) / "config.gin"
    text = (read_whole(config) or b"").decode(errors="replace")
    experiment = read_experiment([Written(str(config), text, trust_imports)], [])
    size = experiment.train.batch_size
    assert experiment.train.task is not None
    task = experiment.train.task.prepare_task(size)
    if not isinstance(task, LanguageModelTask):
        raise UserError(f"{workdir} holds no language model: give runs of one.")
    ahead = -(-MOST_TOKENS // task.sequence_length)
    needed = {row + more for row, _ in wanted for more in range(ahead + 1)}
    target_T: dict[int, np.ndarray] = {}
    for batch in task.evaluation_sets(BatchShard(size), True)[set_name]:
        for row, tokens in zip(batch["row"], batch["tokens"], strict=True):
            if int(row) in needed:
                target_T[int(row)] = tokens[1:]
    texts = {}
    for row, start in wanted:
        rows = [target_T[r] for r in range(row, row + ahead + 1) if r in target_T]
        texts[row, start] = _text(task, np.concatenate(rows)[max(start, 0) :][:MOST_TOKENS])
    return texts


def _text(task: LanguageModelTask, tokens: np.ndarray) -> str:
    """The text of tokens up to the end of a document."""
    ends = np.flatnonzero((tokens == task.tokenizer.eos) | (tokens == task.tokenizer.bos))
    text = task.tokenizer.decode(tokens[: ends[0] if len(ends) else None].tolist())
    return text if len(ends) and len(text) <= LONGEST else f"{text[:LONGEST]}…"


def basis(comparison: Comparison) -> str:
    """On what runs are compared."""
    of_set = f" of the set {comparison.set_name!r}" if comparison.set_name else ""
    return (
        f"{comparison.documents:,} validation documents{of_set}, at {comparison.budget:,.6g} "
        f"{BUDGETS[comparison.at]}"
    )


def verdict(pair: PairResult) -> str:
    """The pair and what was comparison of it, in words."""
    return f"{pair.a} against {pair.b}: {pair.verdict}"


def group_table(comparison: Comparison) -> Table:
    """A row for each group."""

    def seeds(group: GroupResult) -> str:
        return ", ".join(f"{run.seed}: {run.bits_per_byte:.4f}" for run in group.runs)

    rows = [(g.name, f"{g.bits_per_byte:.4f}", seeds(g)) for g in comparison.groups]
    return [("group", "bits per byte", "by seed"), *rows]


def pair_table(comparison: Comparison) -> Table:
    """A row for each pair."""
    rows = [
        (
            f"{pair.a} − {pair.b}",
            f"{pair.difference:+.4f}",
            _between(pair.over_documents),
            _between(pair.over_seeds) if pair.over_seeds else "one seed each",
            f"{pair.p_adjusted:.3g}",
        )
        for pair in comparison.pairs
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


def page(comparison: Comparison, picture: bytes) -> str:
    """The whole page, with the picture in it."""
    title = escape(" against ".join(group.name for group in comparison.groups))
    image = b64encode(picture).decode()
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>{title}</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        _list([basis(comparison), *map(verdict, comparison.pairs), *comparison.notes]),
        f'<img alt="Curves and differences" src="data:image/png;base64,{image}">',
        f"<p>Curves are over the {comparison.in_curves:,} documents of every evaluation; a "
        "band goes from the best to the worst seed.</p>",
        "<h2>Groups</h2>",
        _table(group_table(comparison)),
        *(["<h2>Differences</h2>", _table(pair_table(comparison))] if comparison.pairs else []),
        *_settings(comparison.groups),
        *map(_documents, comparison.pairs),
        "<h2>Runs</h2>",
        _table(_runs(comparison)),
        "<h2>How it was computed</h2>",
        f"<pre>{escape(intervals.__doc__ or '')}</pre>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _settings(groups: Sequence[GroupResult]) -> list[str]:
    names = list(groups[0].settings)
    if not names:
        return []
    head = ("setting", *(group.name for group in groups))
    rows = [(name, *(group.settings[name] for group in groups)) for name in names]
    return ["<h2>Settings that differ</h2>", _table([head, *rows])]


def _documents(pair: PairResult) -> str:
    """The documents that move a difference most, those that are cheapest for `a` first."""

    def row(one: DocumentResult) -> tuple[str, ...]:
        per_byte = one.bits / max(one.bytes, 1)
        return f"{one.bits:+.1f}", f"{per_byte:+.3f}", one.text or f"row {one.row}"

    heading = escape(f"Documents: {pair.a} − {pair.b}")
    rows = [row(one) for one in pair.documents]
    return f"<h2>{heading}</h2>\n{_table([('bits', 'bits per byte', 'text'), *rows])}"


def _runs(comparison: Comparison) -> Table:
    def facts(environment: Mapping[str, object]) -> str:
        return ", ".join(f"{name} {value}" for name, value in environment.items() if value)

    rows = [
        (run.path, run.seed, " and ".join(map(str, run.steps)), facts(run.environment))
        for group in comparison.groups
        for run in group.runs
    ]
    return [("folder", "seed", "evaluated at step", "computed by"), *rows]


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _table(rows: Table) -> str:
    head, *body = (map(escape, row) for row in rows)
    top = "".join(f"<th>{cell}</th>" for cell in head)
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in body)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
