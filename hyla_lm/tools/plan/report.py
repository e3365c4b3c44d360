"""Prints a plan to a terminal."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hyla_lm.tools.plan.calibration import sentence

GIB = 2**30


def show(plan: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints a plan that fits, as tables of at most 80 columns."""
    sections: list[RenderableType] = [
        Text("\n".join(line for line in plan["config"].splitlines() if " = " in line)),
        _table(_title(plan), _facts(plan)),
        _collectives(plan),
        _cycles(plan),
        _prediction(plan),
        Text(f"Method: {plan['method']}\n\nError: {plan['error']}"),
        *(Text(f"Assumption: {assumed}.") for assumed in plan["assumptions"]),
        *(Text(f"Note: {note}") for note in plan["notes"]),
    ]
    spaced: list[RenderableType] = [part for section in sections for part in (section, Text())]
    (console or Console()).print(Group(*spaced), highlight=False)


def _title(plan: Mapping[str, Any]) -> str:
    slices = "" if plan["slices"] == 1 else f"{plan['slices']} slices of "
    generation = plan["topology"].partition(":")[0]
    return f"{plan['chips']} x TPU {generation} ({slices}{plan['topology']})"


def _table(title: str, rows: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _facts(plan: Mapping[str, Any]) -> dict[str, str]:
    memory = plan["memory"]
    sizes = {
        name: f"{memory[name] / GIB:.3f}"
        for name in ("parameters", "optimizer", "batch", "temporary", "total")
    }
    facts = {
        "mesh": ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items()),
        "parameters": f"{plan['parameters']:,} unique, {plan['parameters_as_applied']:,} applied",
        "kernels": ", ".join(f"{n} x {name}" for name, n in Counter(plan["kernels"]).items()),
        "batch": f"{plan['batch_size']:,} rows, {plan['tokens_a_step']:,} tokens a step",
        "GiB a chip": f"parameters {sizes['parameters']}, optimizer {sizes['optimizer']}, batch "
        f"{sizes['batch']}, activations and other temporaries {sizes['temporary']}; with the "
        f"program {sizes['total']} of {memory['hbm'] / GIB:.2f}",
        "FLOPs a token": f"{plan['flops_per_token']:,.0f}",
        "largest batch": _largest(plan["largest_batch"]),
    }
    if "cache" in plan:
        cache = plan["cache"]
        facts["compiled step"] = (
            f"{cache['size_bytes'] / 2**20:.0f} MiB in {cache['folder']}/{cache['name']}. "
            f"{cache['caveat']}"
        )
    return facts


def _largest(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not searched (--compiles=0)"
    if found["rows"] == 0:
        return f"none: {found['too_many']:,} rows do not fit"
    if found["too_many"] is None:
        return f"at least {found['rows']:,} rows ({found['compiles']} compiles)"
    return (
        f"{found['rows']:,} rows fit, {found['too_many']:,} do not "
        f"(multiples of {found['step_rows']:,}, {found['compiles']} compiles)"
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
    for (purpose, kind, axes, is_async), group in sorted(grouped.items(), key=_milliseconds):
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


def _milliseconds(row: tuple[Any, list[Mapping[str, Any]]]) -> float:
    """Orders rows by their time, the longest first."""
    return -sum(x["seconds"] for x in row[1])


def _cycles(plan: Mapping[str, Any]) -> Group:
    table = Table(title="Cycles of a step, a chip", title_justify="left", box=None, padding=(0, 2))
    table.add_column("part")
    for name in ("estimated", "share", "counted", "share", "counted / estimated"):
        table.add_column(name, justify="right")
    rows = [*plan["cycles"]]
    totals = {key: sum(row[key] for row in rows) for key in ("estimated", "counted")}
    for row in [*rows, {"part": "total", **totals}]:
        table.add_row(
            row["part"],
            f"{row['estimated']:,}",
            f"{row['estimated'] / max(1, totals['estimated']):.0%}",
            f"{row['counted']:,}",
            f"{row['counted'] / max(1, totals['counted']):.0%}",
            f"{row['counted'] / max(1, row['estimated']):.2f}",
        )
    return Group(table, Text(_spread(plan["spread"])))


def _spread(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "No operation of XLA has both an estimate and counted bundles."
    return (
        f"Spread: over {found['operations']} operations of XLA with both figures "
        f"({found['share_of_estimate']:.0%} of its estimated cycles) counted / estimated is "
        f"{found['ratio']:.2f} together, {found['median']:.2f} in the middle, "
        f"{found['lowest_tenth']:.2f} and {found['highest_tenth']:.2f} at the tenths."
    )


def _prediction(plan: Mapping[str, Any]) -> Group:
    short, long = plan["predicted"]["shortest"], plan["predicted"]["longest"]
    times = plan["step_seconds"]
    rows = {
        "compute": f"{times['estimated_compute'] * 1e3:.1f} ms estimated, "
        f"{times['counted_compute'] * 1e3:.1f} ms counted",
        "collectives": f"{times['collectives'] * 1e3:.2f} ms for their bytes, "
        f"up to {times['latency'] * 1e3:.2f} ms of latency",
        "bound": f"{times['bound'] * 1e3:.1f} ms",
        "step": _range(short, long, "step_seconds", "{:.1f} ms", 1e3),
        "tokens/s": _range(long, short, "tokens_per_second", "{:,.0f}")
        + " ("
        + _range(long, short, "tokens_per_second_a_chip", "{:,.0f}")
        + " a chip)",
        "MFU": _range(long, short, "mfu", "{:.0%}"),
        f"{plan['steps']:,} steps": _range(short, long, "run_hours", "{:,.1f} h")
        + ", "
        + _range(short, long, "chip_hours", "{:,.0f} chip-hours")
        + "; without evaluation and checkpoints",
    }
    if "cost" in short:
        rows["cost"] = _range(short, long, "cost", "{:,.2f}") + ", at the price given"
    if "calibration" not in plan:
        return Group(_table("Predicted, not measured", rows))
    table = _table("Predicted, corrected by measurement", rows)
    return Group(table, Text(sentence(plan["calibration"])))


def _range(
    low: Mapping[str, float],
    high: Mapping[str, float],
    key: str,
    form: str,
    scale: float = 1.0,
) -> str:
    return f"{form.format(low[key] * scale)} to {form.format(high[key] * scale)}"
