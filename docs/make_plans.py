"""Plans of the paper's models and a larger one: docs/plans/*.json and the tables in docs/plan.md.

Usage: make_plans.py [--missing] [--table]. With --missing, plans that are there stay; with --table
nothing is compiled, and the plans that are there follow hyla_lm/tools/plan/measured.json. A plan
takes one to some minutes of one core, most of it in the compiler.
"""

import argparse
import json
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from hyla_lm import ending
from hyla_lm.errors import UserError
from hyla_lm.storage import write_whole
from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.measured import basis, measured_runs
from hyla_lm.tools.plan.plan import predict

FOLDER = Path(__file__).parent / "plans"
PAGE = Path(__file__).parent / "plan.md"
CONFIGS = ("hyla", "softmax", "linear")
TOPOLOGIES = ("v5e:2x4", "v5e:4x4", "v5e:8x8", "v5e:16x16")
# The parameters of this one are divided; the paper's are whole on each chip.
LARGE = ("1b_hyla", "v5e:16x16")
CASES = [*((config, topology) for topology in TOPOLOGIES for config in CONFIGS), LARGE]
# The largest batch is searched for on one slice; in pure data parallelism it is that of all.
COMPILES = {"v5e:4x4": 2}
# Plans are only of the step: norms by layer add a pass over the parameters.
UNMEASURED = ("LogConfig.layers=False", "LogConfig.details_every=0")


def model_of(config: str) -> str:
    """The name of a config's gin file."""
    return f"c4_{config}" if config == LARGE[0] else f"c4_50m_{config}"


def path_of(config: str, topology: str) -> Path:
    return FOLDER / f"{model_of(config)}_{topology.replace(':', '_')}.json"


def make(config: str, topology: str) -> None:
    """Writes the plan of a config on a slice."""
    command = [sys.executable, "-m", "hyla_lm", "plan", "--json", f"--topology={topology}"]
    command += [f"--gin_file=gin/{model_of(config)}.gin", f"--compiles={COMPILES.get(topology, 0)}"]
    command += [f"--gin.{binding}" for binding in UNMEASURED]
    print(" ".join(command[1:]), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"the plan of {config} on {topology} failed with {done.returncode}.")
    write_whole(path_of(config, topology), done.stdout.encode())


def predict_again(path: Path) -> None:
    """Writes the range of a plan anew, from its roofline and the measured steps of today."""
    plan = json.loads(path.read_text())
    tokens, flops, steps = (plan[x] for x in ("tokens_per_step", "flops_per_step", "steps"))
    topology = Slice(plan["topology"], plan["slices"])
    plan["predicted"] = predict(plan["roofline"], tokens, flops, steps, topology)
    plan["basis"] = basis()
    write_whole(path, f"{json.dumps(plan, indent=1)}\n".encode())


def table() -> str:
    """Chip-hours: a line for each slice, a column for each config."""
    configs = [*CONFIGS, LARGE[0]]
    lines = [["slice", *configs], ["---"] * (1 + len(configs))]
    for topology in TOPOLOGIES:
        lines.append([topology, *(chip_hours(path_of(config, topology)) for config in configs)])
    return _lines(lines)


def measured_table() -> str:
    """What others measured beside the roofline: a line for each program and slice."""
    lines = [["program", "on", "parameters", "roofline, ms", "measured, ms", "MFU, %"], ["---"] * 6]
    by_slice = groupby(measured_runs(), itemgetter("program", "chips", "chip"))
    for (program, chips, chip), runs in by_slice:
        cells = []
        for run in runs:
            figures = run["roofline"] * 1e3, run["step_seconds"] * 1e3, 100 / run["factor"]
            cells.append([run["parameters"], *(f"{figure:.0f}" for figure in figures)])
        lines.append([program, f"{chips} {chip}", *map(", ".join, zip(*cells, strict=True))])
    return _lines(lines)


def _lines(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def chip_hours(path: Path) -> str:
    """The range of a plan, if it was made."""
    if not path.exists():
        return ""
    predicted = json.loads(path.read_text())["predicted"]
    return "–".join(f"{predicted[end]['chip_hours']:,.0f}" for end in ("shortest", "longest"))


def with_tables(page: str) -> str:
    """The page with each table between its marks."""
    for name, lines in (("plans", table()), ("measured", measured_table())):
        before, _, rest = page.partition(f"<!-- {name} -->")
        after = rest.partition(f"<!-- end of {name} -->")[2]
        page = f"{before}<!-- {name} -->\n\n{lines}\n<!-- end of {name} -->{after}"
    return page


def main() -> int:
    """Runs the command and returns its status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missing", action="store_true", help="keep the plans that are there")
    parser.add_argument("--table", action="store_true", help="compile nothing")
    options = parser.parse_args()
    return ending.run("make_plans", lambda: make_all(options.missing, options.table))


def make_all(only_missing: bool, only_table: bool) -> None:
    """Writes the plans, and the tables into the page."""
    FOLDER.mkdir(exist_ok=True)
    for config, topology in CASES:
        is_there = path_of(config, topology).exists()
        if not only_table and not (only_missing and is_there):
            make(config, topology)
        elif is_there:
            predict_again(path_of(config, topology))
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    ending.process(main)
