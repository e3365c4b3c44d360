"""hyla-lm plan: plans, and prints tables of at most 80 columns or JSON."""

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.tools.cycles.topology import Slice, set_up_libtpu
from hyla_lm.tools.plan.plan import make_plan

DOES_NOT_FIT = 1
GIB = 2**30


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Prints the plan; status 1 for one that does not fit."""
    topology = Slice(options.topology, options.slices)
    if options.compiles < 0:
        raise UserError(f"--compiles={options.compiles} must be at least 0.")
    with tempfile.TemporaryDirectory(prefix="hyla_lm_plan_") as folder:
        set_up_libtpu(Path(folder))
        devices = topology.devices()
        experiment = read_experiment(options.gin_file, bindings)
        plan = make_plan(experiment, topology, options.compiles, devices, Path(folder), _say)
    if options.json:
        print(json.dumps(plan, indent=1))
    elif plan["fits"]:
        show(plan)
    if not plan["fits"]:
        print(
            f"hyla-lm: The step needs {plan['needed_bytes'] / GIB:.2f} GiB per chip and "
            f"{plan['topology']} has {plan['available_bytes'] / GIB:.2f}. "
            f"Change one: {'; '.join(plan['change'])}.",
            file=sys.stderr,
        )
        return DOES_NOT_FIT
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show(plan: Mapping[str, Any]) -> None:
    """Prints a plan that fits."""
    slices = "" if plan["slices"] == 1 else f"{plan['slices']} slices of "
    generation = plan["topology"].partition(":")[0]
    title = f"{plan['chips']} x TPU {generation} ({slices}{plan['topology']})"
    sections: list[RenderableType] = [
        Text("\n".join(line for line in plan["config"].splitlines() if " = " in line)),
        _facts(title, _sizes(plan)),
        _collectives(plan),
        _cycles(plan),
        _facts("Predicted, not measured", _prediction(plan)),
        Text(f"Error: {plan['error']}"),
        *(Text(f"Note: {note}") for note in plan["notes"]),
    ]
    spaced: list[RenderableType] = [part for section in sections for part in (section, Text())]
    Console().print(Group(*spaced), highlight=False)


def _facts(title: str, rows: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _sizes(plan: Mapping[str, Any]) -> dict[str, str]:
    gib = {name: f"{size / GIB:.3f}" for name, size in plan["memory"].items()}
    return {
        "mesh": ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items()),
        "parameters": f"{plan['parameters']:,} unique, {plan['parameters_as_applied']:,} applied",
        "kernels": ", ".join(f"{n} x {name}" for name, n in Counter(plan["kernels"]).items()),
        "batch": f"{plan['batch_size']:,} rows, {plan['tokens_per_step']:,} tokens per step",
        "GiB per chip": f"parameters {gib['parameters']}, optimizer {gib['optimizer']}, batch "
        f"{gib['batch']}, activations and other temporaries {gib['temporary']}; with the program "
        f"{gib['total']} of {plan['memory']['hbm'] / GIB:.2f}",
        "FLOPs per token": f"{plan['flops_per_token']:,.0f}",
        "largest batch": _largest(plan["largest_batch"]),
    }


def _largest(batch: Mapping[str, Any] | None) -> str:
    if batch is None:
        return "not searched (--compiles=0)"
    if batch["rows"] == 0:
        return f"none: {batch['too_many']:,} rows do not fit"
    if batch["too_many"] is None:
        return f"at least {batch['rows']:,} rows ({batch['compiles']} compiles)"
    return (
        f"{batch['rows']:,} rows fit, {batch['too_many']:,} do not "
        f"(multiples of {batch['step_rows']:,}, {batch['compiles']} compiles)"
    )


def _collectives(plan: Mapping[str, Any]) -> Table:
    """One line for each purpose, kind and axes: a step of FSDP has hundreds of collectives."""
    grouped: dict[tuple[str, str, str, bool], list[Mapping[str, Any]]] = defaultdict(list)
    for x in plan["collectives"]:
        grouped[x["purpose"], x["kind"], " x ".join(x["axes"]), x["is_async"]].append(x)
    table = Table(title="Collectives of a step", title_justify="left", box=None, padding=(0, 1))
    words = ("for", "kind", "over", "")
    for name in ("for", "kind", "over", "MB", "sent MB", "ms", "times", ""):
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")

    longest_first = sorted(grouped.items(), key=lambda row: -sum(x["seconds"] for x in row[1]))
    for (purpose, kind, axes, is_async), group in longest_first:
        table.add_row(
            purpose,
            kind,
            axes,
            f"{sum(x['bytes'] * x['times'] for x in group) / 1e6:,.1f}",
            f"{sum(x['bytes_sent'] for x in group) / 1e6:,.1f}",
            f"{sum(x['seconds'] for x in group) * 1e3:.2f}",
            f"{sum(x['times'] for x in group)}",
            "async" if is_async else "",
        )
    if not grouped:
        table.add_row("none", *[""] * 7)
    return table


def _cycles(plan: Mapping[str, Any]) -> Table:
    title = "Cycles of a step, per chip"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    table.add_column("part")
    for name in ("estimated", "share", "counted", "share", "counted / estimated"):
        table.add_column(name, justify="right")
    totals = {key: sum(row[key] for row in plan["cycles"]) for key in ("estimated", "counted")}
    for row in [*plan["cycles"], {"part": "total", **totals}]:
        table.add_row(
            row["part"],
            f"{row['estimated']:,}",
            f"{row['estimated'] / max(1, totals['estimated']):.0%}",
            f"{row['counted']:,}",
            f"{row['counted'] / max(1, totals['counted']):.0%}",
            f"{row['counted'] / max(1, row['estimated']):.2f}",
        )
    return table


def _prediction(plan: Mapping[str, Any]) -> dict[str, str]:
    times, ends = plan["step_seconds"], plan["predicted"].values()

    def between(key: str, form: str, scale: float = 1.0) -> str:
        low, high = sorted(end[key] * scale for end in ends)
        return f"{form.format(low)} to {form.format(high)}"

    return {
        "compute": f"{times['estimated_compute'] * 1e3:.1f} ms estimated, "
        f"{times['counted_compute'] * 1e3:.1f} ms counted",
        "collectives": f"{times['collectives'] * 1e3:.2f} ms",
        "bound": f"{times['bound'] * 1e3:.1f} ms",
        "step": between("step_seconds", "{:.1f} ms", 1e3),
        "tokens/s": f"{between('tokens_per_second', '{:,.0f}')} "
        f"({between('tokens_per_second_per_chip', '{:,.0f}')} per chip)",
        "MFU": between("mfu", "{:.0%}"),
        f"{plan['steps']:,} steps": f"{between('run_hours', '{:,.1f} h')}, "
        f"{between('chip_hours', '{:,.0f} chip-hours')}; without evaluation and checkpoints",
    }
