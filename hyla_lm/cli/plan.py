"""Example: hyla-lm plan --gin_file=gin/c4_50m_hyla.gin --topology=v5e:4x4"""

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
        experiment = read_experiment(options.gin_file, bindings)
        plan = make_plan(experiment, topology, options.compiles, Path(folder))
    if options.json:
        print(json.dumps(plan, indent=1))
    elif plan["fits"]:
        print(text(plan))
    if plan["fits"]:
        return 0
    print(
        f"hyla-lm: The step needs {plan['needed_bytes'] / GIB:.2f} GiB per chip and "
        f"{plan['topology']} has {plan['available_bytes'] / GIB:.2f}. Raise "
        "TrainConfig.accumulate_steps, set ModelConfig.remat = True, divide the state by "
        "MeshConfig.fsdp, lower TrainConfig.batch_size, or take a larger slice.",
        file=sys.stderr,
    )
    return DOES_NOT_FIT


def text(plan: Mapping[str, Any]) -> str:
    """A plan that fits: memory, the largest batch, collectives and the range of speed."""
    from hyla_lm.tools.output import plain

    gib = {name: f"{size / GIB:.3f}" for name, size in plan["memory"].items()}
    mesh = ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
    kernels = ", ".join(f"{n} x {name}" for name, n in Counter(plan["kernels"]).items())
    lines = [
        f"{plan['chips']} chips ({plan['slices']} x {plan['topology']}), mesh {mesh}, {kernels}",
        f"GiB per chip: {gib['total']} of {gib['hbm']}; parameters {gib['parameters']}, optimizer "
        f"{gib['optimizer']}, batch {gib['batch']}, temporaries {gib['temporary']}",
        f"batch: {plan['batch_size']:,} rows; the largest: {_largest(plan['largest_batch'])}",
        "",
        *plain(_collectives(plan["collectives"])),
        "",
        "Predicted from the roofline:",
    ]
    scales = {"step_seconds": 1e3, "mfu": 100}
    forms = {
        "step_seconds": "{:.1f} to {:.1f} ms per step",
        "tokens_per_second": "{:,.0f} to {:,.0f} tokens/s",
        "mfu": "{:.0f} to {:.0f} % MFU",
        "chip_hours": f"{{:,.0f}} to {{:,.0f}} chip-hours for {plan['steps']:,} steps",
    }
    for key, form in forms.items():
        ends = sorted(end[key] * scales.get(key, 1) for end in plan["predicted"].values())
        lines.append(form.format(*ends))
    lines += ["", f"Range: {plan['basis']}", *(f"Note: {note}" for note in plan["notes"])]
    return "\n".join(lines)


def _largest(batch: Mapping[str, Any] | None) -> str:
    if batch is None:
        return "not searched (--compiles=0)"
    if batch["too_many"] is None:
        return f"at least {batch['rows']:,} rows"
    return f"{batch['rows']:,} rows fit, {batch['too_many']:,} do not"


def _collectives(collectives: list[Mapping[str, Any]]) -> list[list[str]]:
    """One line for each purpose, kind and axes: a step of FSDP has hundreds of collectives."""
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for x in collectives:
        is_async = ", async" if x["is_async"] else ""
        name = f"{x['purpose']}: {x['kind']} over {' x '.join(x['axes'])}{is_async}"
        grouped[name].append(x)
    rows = [["collectives of a step", "MB", "ms", "times"]]
    for name, group in sorted(grouped.items(), key=lambda row: -sum(x["seconds"] for x in row[1])):
        megabytes = sum(x["bytes"] * x["times"] for x in group) / 1e6
        milliseconds = sum(x["seconds"] for x in group) * 1e3
        times = sum(x["times"] for x in group)
        rows.append([name, f"{megabytes:,.1f}", f"{milliseconds:.2f}", f"{times}"])
    return rows
