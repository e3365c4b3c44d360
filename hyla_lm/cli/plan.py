"""hyla-lm plan: what a config needs of a TPU slice, as tables or JSON."""

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.errors import UserError

HELP = "memory, speed and chip-hours on a TPU slice, without one"
DOES_NOT_FIT = 1
GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(parser)
    parser.add_argument("--topology", required=True, help="slice, such as v5e:4x4")
    parser.add_argument(
        "--slices", type=int, default=1, help="slices of it, for MeshConfig.replica"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--compiles", type=int, default=6, help="most compiles to find the largest batch (0: none)"
    )


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Prints the plan; status 1 for one that does not fit."""
    from hyla_lm.config.read_experiment import read_experiment
    from hyla_lm.tools.cycles.topology import Slice, set_up_libtpu
    from hyla_lm.tools.plan.plan import make_plan

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
        print(text(plan))
    if not plan["fits"]:
        _say(
            f"hyla-lm: The step needs {plan['needed_bytes'] / GIB:.2f} GiB per chip and "
            f"{plan['topology']} has {plan['available_bytes'] / GIB:.2f}. "
            f"Change one: {'; '.join(plan['change'])}."
        )
        return DOES_NOT_FIT
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def text(plan: Mapping[str, Any]) -> str:
    """A plan that fits."""
    from hyla_lm.tools.output import plain

    slices = "" if plan["slices"] == 1 else f"{plan['slices']} slices of "
    generation = plan["topology"].partition(":")[0]
    sections = [
        [line for line in plan["config"].splitlines() if " = " in line],
        [f"{plan['chips']} x TPU {generation} ({slices}{plan['topology']})", *_sizes(plan)],
        ["Collectives of a step", *plain(_collectives(plan["collectives"]))],
        ["Cycles of a step, per chip", *plain(_cycles(plan["cycles"]))],
        ["Predicted, not measured", *_prediction(plan)],
        [f"Error: {plan['error']}", *(f"Note: {note}" for note in plan["notes"])],
    ]
    return "\n\n".join("\n".join(section) for section in sections)


def _facts(rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, rows))
    return [f"  {name:{width}}  {value}" for name, value in rows.items()]


def _sizes(plan: Mapping[str, Any]) -> list[str]:
    gib = {name: f"{size / GIB:.3f}" for name, size in plan["memory"].items()}
    rows = {
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
    return _facts(rows)


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


def _collectives(collectives: list[Mapping[str, Any]]) -> list[list[str]]:
    """One line for each purpose, kind and axes: a step of FSDP has hundreds of collectives."""
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for x in collectives:
        is_async = ", async" if x["is_async"] else ""
        name = f"{x['purpose']}: {x['kind']} over {' x '.join(x['axes'])}{is_async}"
        grouped[name].append(x)
    rows = []
    for name, group in sorted(grouped.items(), key=lambda row: -sum(x["seconds"] for x in row[1])):
        cells = [
            f"{sum(x['bytes'] * x['times'] for x in group) / 1e6:,.1f}",
            f"{sum(x['bytes_sent'] for x in group) / 1e6:,.1f}",
            f"{sum(x['seconds'] for x in group) * 1e3:.2f}",
            f"{sum(x['times'] for x in group)}",
        ]
        rows.append([name, *cells])
    return [["for", "MB", "sent MB", "ms", "times"], *rows]


def _cycles(parts: list[Mapping[str, Any]]) -> list[list[str]]:
    totals = {key: sum(row[key] for row in parts) for key in ("estimated", "counted")}
    rows = [["part", "estimated", "share", "counted", "share", "counted / estimated"]]
    for row in [*parts, {"part": "total", **totals}]:
        cells = [
            f"{row['estimated']:,}",
            f"{row['estimated'] / max(1, totals['estimated']):.0%}",
            f"{row['counted']:,}",
            f"{row['counted'] / max(1, totals['counted']):.0%}",
            f"{row['counted'] / max(1, row['estimated']):.2f}",
        ]
        rows.append([row["part"], *cells])
    return rows


def _prediction(plan: Mapping[str, Any]) -> list[str]:
    times, ends = plan["step_seconds"], plan["predicted"].values()

    def between(key: str, form: str, scale: float = 1.0) -> str:
        low, high = sorted(end[key] * scale for end in ends)
        return f"{form.format(low)} to {form.format(high)}"

    rows = {
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
    return _facts(rows)
