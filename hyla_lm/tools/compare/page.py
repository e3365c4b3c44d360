"""A comparison as one page of HTML, which needs nothing else and no network."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from hyla_lm.tools.compare import charts
from hyla_lm.tools.compare.comparison import Comparison, DocumentResult, PairResult, RunResult
from hyla_lm.tools.compare.intervals import Interval
from hyla_lm.tools.compare.shapes import COLOURS, budget_label

LIGHT, DARK = (
    ("#ffffff", "#f5f6f8", "#1c2126", "#5d6873", "#dde1e6"),
    ("#14171a", "#1d2125", "#e6e9ec", "#98a2ad", "#333a41"),
)
NAMES = ("page", "panel", "ink", "soft", "rule")
STYLE = """
* { box-sizing: border-box }
body { margin: 0 auto; padding: 28px 20px 60px; max-width: 1120px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 24px; margin: 0 0 4px } h2 { font-size: 17px; margin: 34px 0 8px }
h3 { font-size: 14px; margin: 18px 0 6px; color: var(--soft) }
p { margin: 6px 0; max-width: 75ch } .soft { color: var(--soft) }
ul { padding-left: 18px; margin: 6px 0; max-width: 75ch }
.charts { display: grid; gap: 20px; margin-top: 18px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)) }
figure { margin: 0; padding: 12px; background: var(--panel); border-radius: 8px; min-width: 0;
  max-width: 640px }
figcaption { font-size: 13px; color: var(--soft); margin-bottom: 6px }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif }
svg text { fill: var(--soft); text-anchor: middle }
svg .left { text-anchor: end } svg .label { text-anchor: start; fill: var(--ink);
  stroke: var(--panel); stroke-width: 5px; paint-order: stroke }
.grid { stroke: var(--rule) } .zero { stroke: var(--soft) }
.budget { stroke: var(--soft); stroke-dasharray: 3 4 }
.line { fill: none; stroke: var(--c); stroke-width: 2 } .dot { fill: var(--c) }
.band { fill: var(--c); opacity: .18 } .point { fill: var(--ink) }
.whole { stroke: var(--ink); stroke-width: 2 } .inner { stroke: var(--ink); stroke-width: 6;
  opacity: .35 }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 5px; background: var(--c);
  margin-right: 7px }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 14px; width: 100% }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0;
  border-bottom: 1px solid var(--rule) }
th { color: var(--soft); font-weight: 500; white-space: nowrap }
.number { font-variant-numeric: tabular-nums; white-space: nowrap }
.text { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 170px }
.verdict { font-size: 16px }
"""
METHOD = (
    "Every run scored the same documents, so differences are taken document by document. Bits per "
    "byte are a ratio of sums: all bits of a group over all UTF-8 bytes. Where a row holds several "
    "documents, the bytes of its text are shared out by the length of their pieces.",
    "Over documents: 95 % of paired cluster bootstraps, which draw whole documents again. It is an "
    "interval for these very runs on other text of this kind.",
    "Over seeds and documents: V = s²(1/n_A + 1/n_B) + max(V_documents − V_both, 0), where s² is "
    "the variance over seeds pooled over the two groups, V_documents that of the bootstrap, and "
    "V_both the part that both count, from the residuals by seed and document (Cameron, Gelbach "
    "and Miller 2011). Student's t with degrees of freedom by Satterthwaite (1946). Two or three "
    "seeds know s² badly, and are taken to vary alike in both groups.",
    "A difference is found where the p-value of the wider of these intervals that there is, "
    "adjusted for the number of pairs by Holm, is below 0.05. The intervals are not adjusted.",
    "Validation text of one source says nothing of other text.",
)


def page(found: Comparison) -> str:
    """The whole page."""
    title = " against ".join(group.name for group in found.groups[:3])
    title += f" and {len(found.groups) - 3} more" if len(found.groups) > 3 else ""
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(basis(found))}</p>',
        *(f'<p class="verdict">{escape(verdict(pair))}</p>' for pair in found.pairs),
        _list(found.notes),
        _charts(found),
        "<h2>Groups</h2>",
        _groups(found),
        *(["<h2>Differences</h2>", _pairs(found)] if found.pairs else []),
        *_settings(found),
        *(part for pair in found.pairs for part in _documents(pair)),
        "<h2>Runs</h2>",
        _runs(found),
        "<h2>How it was computed</h2>",
        _list(METHOD),
    ]
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_colours()}{STYLE}</style></head><body>"
    )
    return "\n".join([head, *body, "</body></html>\n"])


def verdict(pair: PairResult) -> str:
    """The pair and what was found of it, in words."""
    return f"{pair.a} against {pair.b}: {pair.verdict}"


def basis(found: Comparison) -> str:
    """On what runs are compared."""
    which = f" of the set {found.set_name!r}" if found.set_name else ""
    return (
        f"{found.documents:,} validation documents{which}, at {found.budget:,.6g} "
        f"{budget_label(found)}"
    )


def _colours() -> str:
    def variables(shades: Sequence[str], which: int) -> str:
        names = "".join(f"--{n}: {c}; " for n, c in zip(NAMES, shades, strict=True))
        series = "".join(f".c{i} {{ --c: {both[which]} }}" for i, both in enumerate(COLOURS))
        return f":root {{ color-scheme: light dark; {names}}} {series}"

    return f"{variables(LIGHT, 0)} @media (prefers-color-scheme: dark) {{{variables(DARK, 1)}}}"


def _charts(found: Comparison) -> str:
    legend = " &ensp; ".join(
        f'<span class="key c{i % len(COLOURS)}"></span>{escape(group.name)}'
        for i, group in enumerate(found.groups)
    )
    said = (
        f"Validation bits per byte, over the {found.in_curves:,} documents that every evaluation "
        "saw; band: from the best to the worst seed"
    )
    figures = [(said, legend)]
    drawn = [charts.curves(found)]
    if found.pairs:
        figures.append(("Differences with 95 % intervals; thick: over documents alone", ""))
        drawn.append(charts.forest(found))
    parts = [
        f"<figure><figcaption>{caption}<br>{more}</figcaption>{svg}</figure>"
        for (caption, more), svg in zip(figures, drawn, strict=True)
    ]
    return f'<div class="charts">{"".join(parts)}</div>'


def _groups(found: Comparison) -> str:
    rows = [
        (group.name, f"{group.bits_per_byte:.4f}", str(len(group.runs)), _each(group.runs))
        for group in found.groups
    ]
    return _table(("Group", "Bits per byte", "Runs", "Seed: bits per byte"), rows)


def _each(runs: Iterable[RunResult]) -> str:
    return ", ".join(f"{run.seed}: {run.bits_per_byte:.4f}" for run in runs)


def _pairs(found: Comparison) -> str:
    head = ("Pair", "Difference", "Over documents", "Over seeds too", "p, adjusted", "Verdict")
    rows = [
        (
            f"{pair.a} − {pair.b}",
            f"{pair.difference:+.4f}",
            shown(pair.over_documents),
            shown(pair.over_seeds),
            f"{pair.p_adjusted:.3g}",
            pair.verdict,
        )
        for pair in found.pairs
    ]
    return _table(head, rows)


def shown(interval: Interval | None) -> str:
    """An interval, or that there is none."""
    return "one seed each" if interval is None else f"{interval.low:+.4f} to {interval.high:+.4f}"


def _settings(found: Comparison) -> list[str]:
    names = list(found.groups[0].settings)
    if not names:
        return []
    rows = [(name, *(group.settings[name] for group in found.groups)) for name in names]
    head = ("Setting", *(group.name for group in found.groups))
    return ["<h2>Settings that differ</h2>", _table(head, rows)]


def _documents(pair: PairResult) -> list[str]:
    better = [d for d in pair.documents if d.bits < 0]
    worse = [d for d in reversed(pair.documents) if d.bits > 0]
    parts = [f"<h2>Documents: {escape(f'{pair.a} − {pair.b}')}</h2>"]
    parts.append('<p class="soft">Those that move the difference most, either way.</p>')
    for name, documents in ((pair.a, better), (pair.b, worse)):
        if documents:
            parts.append(f"<h3>Cheaper for {escape(name)}</h3>")
            parts.append(_table(("Bits", "Bits a byte", "Text"), map(_document, documents)))
    return parts


def _document(one: DocumentResult) -> tuple[str, str, str]:
    return f"{one.bits:+.1f}", f"{one.bits / max(one.bytes, 1):+.3f}", one.text or f"row {one.row}"


def _runs(found: Comparison) -> str:
    rows = [
        (run.path, run.seed, " and ".join(map(str, run.steps)), _environment(run.environment))
        for group in found.groups
        for run in group.runs
    ]
    return _table(("Folder", "Seed", "Evaluated at step", "Computed by"), rows)


def _environment(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value)


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, head, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def _cell(name: str, text: str) -> str:
    kind = "text" if name == "Text" else "number" if text[:1] in "+-0123456789" else ""
    return f'<td class="{kind}">{escape(text)}</td>'
