"""A calibration as one JSON object, and as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hyla_lm.run.program import versions
from hyla_lm.tools.calibrate.kernels import Check
from hyla_lm.tools.calibrate.prediction import Prediction
from hyla_lm.tools.calibrate.subject import Subject
from hyla_lm.tools.calibrate.timing import Measurement
from hyla_lm.tools.plan.calibration import FORMAT
from hyla_lm.tools.plan.plan import attention_of

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def as_json(
    subject: Subject,
    checks: Sequence[Check],
    found: Sequence[Measurement],
    prediction: Prediction,
) -> dict[str, Any]:
    """All that was found, with what is needed to know whether it applies elsewhere."""
    experiment = subject.experiment
    return {
        "calibration": FORMAT,
        "device": {
            "platform": subject.platform,
            "kind": subject.kind,
            "count": len(subject.devices),
        },
        "versions": versions(),
        "gin_files": list(subject.gin_files),
        "default_config": subject.is_default,
        "config": experiment.text,
        "dtype": experiment.model.dtype,
        "attention": attention_of(subject.program),
        "batch_size": experiment.train.batch_size,
        "rows_a_device": subject.rows,
        "tokens_a_step": subject.program.tokens_per_step,
        "kernels": [{**asdict(check), "is_within": check.is_within} for check in checks],
        "measurements": [_row(x) for x in found],
        "prediction": prediction.plan,
        "no_prediction": prediction.reason,
    }


def _row(x: Measurement) -> dict[str, Any]:
    return {
        "group": x.group,
        "name": x.name,
        "seconds": x.timing.median,
        "lower_quartile": x.timing.lower,
        "upper_quartile": x.timing.upper,
        "spread": x.timing.spread,
        "repeats": x.timing.repeats,
        "work": x.work,
        "unit": x.unit,
        "rate": x.rate,
        "predicted": dict(x.predicted),
        "ratio": x.ratio,
    }


def show(content: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints a calibration as tables."""
    device = content["device"]
    named = ", ".join(f"{name} {v}" for name, v in content["versions"].items() if v)
    default = f", the default on {device['platform']}" if content["default_config"] else ""
    head = (
        f"{device['count']} x {device['kind']} ({named})\n"
        f"config: {', '.join(content['gin_files'])}{default}; {content['dtype']}, "
        f"{', '.join(content['attention'])}, {content['batch_size']} rows a step"
    )
    tail = "" if content["prediction"] else f"Nothing is predicted: {content['no_prediction']}."
    kernels, measured = _kernels(content["kernels"]), _measurements(content["measurements"])
    shown = Group(Text(head), Text(), kernels, Text(), measured, Text(tail))
    (console or Console()).print(shown, highlight=False)


def _kernels(checks: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Kernels against the float32 reference", title_justify="left", box=None)
    for name in ("kernel", "case", "output", "gradients", "of bound", "verdict"):
        table.add_column(name, overflow="fold")
    for check in checks:
        errors, bounds = check["errors"], check["bounds"]
        gradients = [x for name, x in errors.items() if name != "output"]
        share = max((_size(x) / bounds[name] for name, x in errors.items()), default=0.0)
        table.add_row(
            check["kernel"],
            check["case"],
            _error(errors["output"]) if errors else "",
            _error(max(gradients, key=_size)) if gradients else "",
            f"{share:.0%}" if errors else "",
            "within" if check["is_within"] else check["failure"] or "NOT within",
        )
    return table


def _size(error: float | None) -> float:
    return float("inf") if error is None else error


def _error(error: float | None) -> str:
    return "no number" if error is None else f"{error:.1e}"


def _measurements(rows: Sequence[Mapping[str, Any]]) -> Table:
    title = "Medians, with the distance of the farther quartile"
    table = Table(title=title, title_justify="left", box=None)
    for name in (
        "what",
        "ms",
        "spread",
        "runs",
        "rate",
        "plan ms",
        "ratio",
    ):
        is_name = name == "what"
        table.add_column(name, justify="left" if is_name else "right", no_wrap=is_name)
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['seconds'] * 1e3:,.3f}",
            f"{row['spread']:.0%}",
            str(row["repeats"]),
            "" if row["rate"] is None else _rate(row["rate"], row["unit"]),
            " ".join(f"{seconds * 1e3:,.2f}" for seconds in row["predicted"].values()),
            " ".join(f"{ratio:.2f}" for ratio in row["ratio"].values()),
        )
    return table


def _rate(rate: float, unit: str) -> str:
    size, letter = next((pair for pair in UNITS if rate >= pair[0]), UNITS[-1])
    return f"{rate / size:.3g} {letter}{unit}/s"
