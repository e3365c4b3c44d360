"""hyla-lm calibrate: measures the device that is here, prints tables, writes one JSON file."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hyla_lm.errors import UserError
from hyla_lm.run.program import versions
from hyla_lm.storage import write_whole
from hyla_lm.tools.calibrate.kernels import Check, check_kernels
from hyla_lm.tools.calibrate.steps import Subject, read_subject, time_parts, time_step
from hyla_lm.tools.calibrate.timing import (
    FEWEST,
    Budget,
    Measurement,
    time_collectives,
    time_peaks,
)

A_KERNEL_IS_OFF = 1
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Measures and writes; status 1 if a kernel is not within its bound."""
    if options.repeats < FEWEST:
        raise UserError(f"--repeats={options.repeats} must be at least {FEWEST}.")
    path = Path(options.output)
    if "://" not in options.output and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UserError(f"--output={path} must be a file in a folder that is there.")
    subject = read_subject(options.gin_file, bindings)
    default = f", the default on {subject.platform}" if subject.is_default else ""
    config = f"config: {', '.join(subject.gin_files)}{default}"
    _say(config)
    checks, measurements = measure(subject, Budget(options.repeats))
    content = as_json(subject, checks, measurements)
    show(content, config)
    write_whole(options.output, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    print(f"wrote {options.output}")
    off = [check.kernel for check in checks if not check.is_within]
    if not off:
        print(f"all {len(checks)} kernel checks are within their bounds")
        return 0
    named = ", ".join(dict.fromkeys(off))
    print(f"{len(off)} of {len(checks)} kernel checks are NOT within their bounds: {named}")
    return A_KERNEL_IS_OFF


def measure(subject: Subject, budget: Budget) -> tuple[list[Check], list[Measurement]]:
    """Kernels, peaks, collectives, parts and whole steps; raises UserError without memory."""
    model, mesh = subject.experiment.model, subject.program.mesh
    length, device = subject.program.task.sequence_length, subject.devices[0]
    try:
        checks = check_kernels(model, length, subject.platform, _say)
        _say("peaks of one device")
        measurements = list(time_peaks(device, model.dtype, budget))
        if mesh.size > 1:
            _say("collectives")
            measurements += time_collectives(mesh, budget)
        measurements += time_parts(subject, budget, _say)
        _say("whole train steps")
        return checks, [*measurements, time_step(subject, budget)]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        train = subject.experiment.train
        raise UserError(
            f"the device lacks memory for TrainConfig.batch_size = {train.batch_size}: lower it, "
            "or raise TrainConfig.accumulate_steps."
        ) from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def as_json(
    subject: Subject, checks: Sequence[Check], measurements: Sequence[Measurement]
) -> dict[str, Any]:
    """All that was measured, with what is needed to know whether it applies elsewhere."""
    experiment, device = subject.experiment, subject.devices[0]
    return {
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": len(subject.devices),
        },
        "versions": versions(),
        "gin_files": list(subject.gin_files),
        "config": experiment.text,
        "dtype": experiment.model.dtype,
        "attention": subject.attention,
        "batch_size": experiment.train.batch_size,
        "rows_per_device": subject.rows,
        "tokens_per_step": subject.program.tokens_per_step,
        "kernels": [{**asdict(check), "is_within": check.is_within} for check in checks],
        "measurements": [
            {
                "group": x.group,
                "name": x.name,
                **asdict(x.timing),
                "spread": x.timing.spread,
                "work": x.work,
                "unit": x.unit,
                "rate": x.rate,
            }
            for x in measurements
        ],
    }


def show(content: Mapping[str, Any], config: str) -> None:
    """Prints a calibration as tables."""
    device = content["device"]
    named = ", ".join(f"{name} {v}" for name, v in content["versions"].items() if v)
    head = (
        f"{device['count']} x {device['kind']} ({named})\n{config}; {content['dtype']}, "
        f"{', '.join(content['attention'])}, {content['batch_size']} rows per step"
    )
    kernels, times = _kernels(content["kernels"]), _times(content["measurements"])
    Console().print(Group(Text(head), Text(), kernels, Text(), times, Text()), highlight=False)


def _kernels(checks: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Kernels against the float32 reference", title_justify="left", box=None)
    for name in ("kernel", "case", "output", "gradients", "of bound", "verdict"):
        table.add_column(name, overflow="fold")
    for check in checks:
        # An error that is no number counts as the largest.
        errors = {name: float("inf") if x is None else x for name, x in check["errors"].items()}
        gradients = [x for name, x in errors.items() if name != "output"]
        share = max((x / check["bounds"][name] for name, x in errors.items()), default=0.0)
        table.add_row(
            check["kernel"],
            check["case"],
            _error(errors["output"]) if errors else "",
            _error(max(gradients)) if gradients else "",
            f"{share:.0%}" if errors else "",
            "within" if check["is_within"] else check["failure"] or "NOT within",
        )
    return table


def _error(error: float) -> str:
    return "no number" if error == float("inf") else f"{error:.1e}"


def _times(rows: Sequence[Mapping[str, Any]]) -> Table:
    title = "Medians, with the distance of the farther quartile"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("what", no_wrap=True)
    for name in ("ms", "spread", "runs", "rate"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['seconds'] * 1e3:,.3f}",
            f"{row['spread']:.0%}",
            str(row["repeats"]),
            "" if row["rate"] is None else _rate(row["rate"], row["unit"]),
        )
    return table


def _rate(rate: float, unit: str) -> str:
    size, letter = next((pair for pair in UNITS if rate >= pair[0]), UNITS[-1])
    return f"{rate / size:.3g} {letter}{unit}/s"
