"""What a person reads of a sweep: sentences, a table, summary.md; and summary.json."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hyla_lm.tools.sweep.summary import Result, Standing, Summary

NONE = "–"


def sentences(summary: Summary) -> list[str]:
    """How much is done, what the best point is and how sure that is."""
    failed = f", {len(summary.failures)} failed" if summary.failures else ""
    lines = [f"{summary.finished} of {summary.planned} runs are finished{failed}."]
    best, second = summary.best, summary.second
    if best is not None:
        lines.append(f"Best: {best.point.name}, {summary.metric.name} {shown(best)}.")
    if best is not None and second is not None:
        lines.append(f"Second: {second.point.name}, {shown(second)}; {_sure(summary)}")
    return lines


def table(summary: Summary) -> list[list[str]]:
    """A head and a row for each point, the best first."""
    head = ["point", summary.metric.name, "seeds", "seconds"]
    return [head, *map(_row, summary.standings)]


def plain(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table on a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def failure_lines(results: Sequence[Result]) -> list[str]:
    """Why runs failed, a line each."""
    return [f"{result.run.name} failed: {result.failure}" for result in results]


def markdown(summary: Summary, picture: str) -> str:
    """summary.md; `picture` is the name of the picture, or empty."""
    head, *rows = table(summary)
    body = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    note = (
        f"{summary.metric.name} is the mean over seeds ± its standard error; the "
        f"{summary.metric.best} is the best. Seconds are those of the training steps of a run."
    )
    parts = [
        "# Sweep",
        " ".join(sentences(summary)),
        "\n".join(f"| {' | '.join(row)} |" for row in body),
        note,
        "\n".join(f"- {line}" for line in failure_lines(summary.failures)),
        f"![{summary.metric.name}]({picture})" if picture else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def as_json(summary: Summary) -> str:
    """The content of the sweep's summary.json."""
    found = {
        "metric": summary.metric.name,
        "best_is": summary.metric.best,
        "best": summary.best and summary.best.point.name,
        "second": summary.second and summary.second.point.name,
        "second_is_worse_by": summary.lead and asdict(summary.lead),
        "told": sentences(summary),
        "points": [_standing(one) for one in summary.standings],
    }
    return json.dumps(found, indent=1) + "\n"


def shown(standing: Standing) -> str:
    """The mean with its standard error, if it has one."""
    if standing.mean is None:
        return NONE
    error = "" if standing.error is None else f" ± {standing.error:.4f}"
    return f"{standing.mean:.4f}{error}"


def _sure(summary: Summary) -> str:
    """How sure it is, from the seeds, that the best point is better than the second."""
    found = summary.lead
    if found is None:
        return "one seed does not say how sure that order is: more --seeds do."
    apart = f"worse by {found.value:.4f}, 95 % interval {found.low:.4f} to {found.high:.4f}"
    if found.may_be_chance:
        return f"{apart}: it includes 0, so the order may be chance, and more --seeds tell."
    return f"{apart}: by these seeds the order is no chance."


def _row(standing: Standing) -> list[str]:
    return [
        standing.point.name,
        shown(standing),
        f"{len(standing.values)} of {len(standing.results)}",
        NONE if standing.seconds is None else f"{standing.seconds:.1f}",
    ]


def _standing(standing: Standing) -> dict[str, Any]:
    return {
        "point": standing.point.name,
        "settings": {value.key: value.text for value in standing.point.values},
        "mean": standing.mean,
        "standard_error": standing.error,
        "seconds": standing.seconds,
        "runs": [_result(result) for result in standing.results],
    }


def _result(result: Result) -> dict[str, Any]:
    return {
        "folder": result.run.name,
        "seed": result.run.seed,
        "value": result.value,
        "failure": result.failure or None,
    }
