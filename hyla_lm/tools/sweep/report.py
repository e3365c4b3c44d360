"""What a person reads of a sweep: a list of its runs, the ranking, and a picture."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from hyla_lm.storage import as_path
from hyla_lm.tools.output import new_figure, plain, png
from hyla_lm.tools.sweep.results import Standing, Summary
from hyla_lm.tools.sweep.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lines = dict[str, list[tuple[float, Standing]]]
NONE = "–"
ALIGNMENT = ["---", "---:", "---:", "---:"]
MOST_LINES, MOST_ROWS = 10, 30
FAR_APART = 4.0
TITLE = "mean ± standard error; a dot is a seed"
RING: dict[str, Any] = {"marker": "o", "s": 170, "facecolors": "none", "edgecolors": "black"}
SEED_DOTS: dict[str, Any] = {"linestyle": "none", "marker": ".", "markersize": 5, "alpha": 0.4}


def listing(runs: Sequence[Run]) -> list[str]:
    """A line for each run that a sweep would train, and the sum of all."""
    rows = [("folder", "steps", "tokens", "state")]
    lengths = [getattr(run.experiment.train.task, "sequence_length", None) for run in runs]
    total = 0
    for run, length in zip(runs, lengths, strict=True):
        train = run.experiment.train
        tokens = train.steps * train.batch_size * (length or 0)
        total += tokens
        rows.append((run.name, f"{train.steps:,}", f"{tokens:,}" if length else NONE, _state(run)))
    points = len({run.point for run in runs})
    steps = sum(run.experiment.train.steps for run in runs)
    whole = f", {total:,} tokens" if all(lengths) else ""
    counted = f"{points} points x {len(runs) // points} seeds = {len(runs)} runs"
    return [*plain(rows), f"{counted}, {steps:,} steps{whole}"]


def _state(run: Run) -> str:
    if run.summary():
        return "finished"
    return "begun" if (as_path(run.workdir) / "config.gin").exists() else "to do"


def sentences(summary: Summary) -> list[str]:
    """How much is done, what the best point is and how sure that is."""
    failed = f", {summary.failed} failed" if summary.failed else ""
    lines = [f"{summary.finished} of {summary.planned} runs are finished{failed}."]
    best, second = summary.best, summary.second
    if best is not None:
        lines.append(f"Best: {best.point.name}, {summary.metric.name} {_mean(best)}.")
    if second is not None:
        lines.append(f"Second: {second.point.name}, {_mean(second)}; {_certainty(summary)}")
    return lines


def _certainty(summary: Summary) -> str:
    """How sure it is, from the seeds, that the best point is better than the second."""
    lead = summary.lead
    if lead is None:
        return "one seed does not say how sure that order is: more --seeds do."
    apart = f"worse by {lead.value:.4f}, 95 % interval {lead.low:.4f} to {lead.high:.4f}"
    if lead.low <= 0:
        return f"{apart}: it includes 0, so the order may be chance, and more --seeds tell."
    return f"{apart}: by these seeds the order is no chance."


def table(summary: Summary) -> list[list[str]]:
    """A head and a row for each point, the best first."""
    rows = [["point", summary.metric.name, "seeds", "seconds"]]
    for one in summary.standings:
        seconds = NONE if one.seconds is None else f"{one.seconds:.1f}"
        done = f"{len(one.values)} of {one.planned}"
        rows.append([one.point.name, _mean(one), done, seconds])
    return rows


def _mean(standing: Standing) -> str:
    """The mean with its standard error, if it has one."""
    if standing.mean is None:
        return NONE
    error = "" if standing.error is None else f" ± {standing.error:.4f}"
    return f"{standing.mean:.4f}{error}"


def markdown(summary: Summary, picture: str) -> str:
    """summary.md; `picture` is the name of the picture, or empty."""
    head, *rows = table(summary)
    name = summary.metric.name
    failures = [
        f"- {one.point.name}/seed={seed} failed: {reason}"
        for one in summary.standings
        for seed, reason in one.failures.items()
    ]
    parts = [
        "# Sweep",
        " ".join(sentences(summary)),
        "\n".join(f"| {' | '.join(row)} |" for row in [head, ALIGNMENT, *rows]),
        f"{name} is the mean over seeds ± its standard error; the {summary.metric.best} is the "
        "best. Seconds are those of the training steps of a run.",
        "\n".join(failures),
        f"![{name}]({picture})" if picture else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def as_json(summary: Summary) -> str:
    """The content of the sweep's summary.json."""
    points = [
        {
            "point": one.point.name,
            "settings": {value.key: value.text for value in one.point.values},
            "mean": one.mean,
            "standard_error": one.error,
            "seconds": one.seconds,
            "runs": one.planned,
            "by_seed": one.values,
            "failures": one.failures,
        }
        for one in summary.standings
    ]
    content = {
        "metric": summary.metric.name,
        "best_is": summary.metric.best,
        "best": summary.best and summary.best.point.name,
        "second": summary.second and summary.second.point.name,
        "second_is_worse_by": summary.lead and asdict(summary.lead),
        "points": points,
    }
    return json.dumps(content, indent=1) + "\n"


def draw(summary: Summary) -> bytes:
    """A PNG: lines over a number where one is swept and that is few lines, else a ranking."""
    key, lines = lines_of(summary.standings)
    if 0 < len(lines) <= MOST_LINES:
        figure = new_figure(7, 4.2)
        axes = figure.subplots()
        _draw_lines(axes, lines, summary.best)
        axes.set_xlabel(key)
        axes.set_ylabel(f"{summary.metric.name} ({summary.metric.best} is best)")
    else:
        rows = summary.standings[:MOST_ROWS]
        figure = new_figure(7.5, 1.4 + 0.32 * len(rows))
        axes = figure.subplots()
        _draw_ranking(axes, rows)
        axes.set_xlabel(f"{summary.metric.name} ({summary.metric.best} is best)")
    axes.set_title(TITLE)
    axes.grid(alpha=0.3)
    return png(figure)


def lines_of(standings: Sequence[Standing]) -> tuple[str, Lines]:
    """The swept number that has the most values, and the points of each line in its order.

    The other settings make the lines. There are none where no number is swept in all points.
    """
    numbers = [
        {value.key: value.number for value in one.point.values if value.number is not None}
        for one in standings
    ]
    shared = [key for key in numbers[0] if all(key in of for of in numbers)]
    counts = {key: len({of[key] for of in numbers}) for key in shared}
    key = max(counts, key=lambda one: counts[one], default="")
    lines: Lines = {}
    if counts.get(key, 0) < 2:
        return key, lines
    for standing, of in zip(standings, numbers, strict=True):
        others = [value for value in standing.point.values if value.key != key]
        label = ", ".join(f"{value.key.rpartition('.')[2]} {value.label}" for value in others)
        lines.setdefault(label, []).append((of[key], standing))
    return key, {name: sorted(lines[name], key=lambda one: one[0]) for name in sorted(lines)}


def is_geometric(numbers: Sequence[float]) -> bool:
    """Whether sorted numbers are far apart and lie as evenly on a log axis, or more so."""
    if numbers[0] <= 0 or numbers[-1] / numbers[0] < FAR_APART:
        return False
    ratios, steps = np.diff(np.log(numbers)), np.diff(numbers)
    return bool(ratios.std() / ratios.mean() <= steps.std() / steps.mean())


def _draw_lines(axes: "Axes", lines: Lines, best: Standing | None) -> None:
    """Means with standard errors, the seeds as dots, and a cross where runs failed."""
    for number, (label, line) in enumerate(lines.items()):
        color = f"C{number}"
        known = [(x, one.mean, one.error or 0.0) for x, one in line if one.mean is not None]
        if known:
            places, means, errors = zip(*known, strict=True)
            style: dict[str, Any] = {"marker": "o", "capsize": 3, "color": color}
            axes.errorbar(places, means, errors, label=label or None, **style)
        for x, one in line:
            axes.plot([x] * len(one.values), [*one.values.values()], color=color, **SEED_DOTS)
            if one is best and one.mean is not None:
                axes.scatter(x, one.mean, label="best", zorder=3, **RING)
        failed = [x for x, one in line if one.failures]
        if failed:
            top, name = axes.get_xaxis_transform(), f"{label} failed".strip()
            heights = [0.97] * len(failed)
            axes.plot(failed, heights, "x", color=color, transform=top, label=name, clip_on=False)
    numbers = sorted({number for line in lines.values() for number, _ in line})
    if is_geometric(numbers):
        axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:g}" for number in numbers])
    axes.minorticks_off()
    axes.legend(fontsize=8)


def _draw_ranking(axes: "Axes", rows: Sequence[Standing]) -> None:
    """The best points from above, each a row."""
    for row, one in enumerate(rows):
        axes.plot([*one.values.values()], [row] * len(one.values), color="C0", **SEED_DOTS)
        if one.mean is not None:
            axes.errorbar(one.mean, row, xerr=one.error or 0.0, marker="o", capsize=3, color="C0")
    labels = [f"{one.point.name} (failed)" if one.failures else one.point.name for one in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
