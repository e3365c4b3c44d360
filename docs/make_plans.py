"""Plans of the paper's models and a larger one: docs/plans/*.json and the table in docs/plan.md.

Usage: make_plans.py [--missing] [--table]. With --missing, plans that are there stay; with --table
nothing is compiled. A plan takes one to some minutes of one core, most of it in the compiler.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from hyla_lm import ending
from hyla_lm.errors import UserError
from hyla_lm.storage import write_whole

FOLDER = Path(__file__).parent / "plans"
PAGE = Path(__file__).parent / "plan.md"
BEGIN, END = "<!-- plans -->", "<!-- end of plans -->"
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


def table() -> str:
    """Milliseconds per step and chip-hours: a line for each slice, two columns for each config."""
    configs = [*CONFIGS, LARGE[0]]
    head = ["slice", *(cell for config in configs for cell in (f"{config}: ms", "chip-hours"))]
    lines = [head, ["---"] * len(head)]
    for topology in TOPOLOGIES:
        cells = (cell for config in configs for cell in times(path_of(config, topology)))
        lines.append([topology, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def times(path: Path) -> tuple[str, str]:
    """The ranges of a plan, if it was made."""
    if not path.exists():
        return "", ""
    predicted = json.loads(path.read_text())["predicted"]
    short, long = predicted["shortest"], predicted["longest"]
    milliseconds = f"{short['step_seconds'] * 1e3:.1f}–{long['step_seconds'] * 1e3:.1f}"
    return milliseconds, f"{short['chip_hours']:,.0f}–{long['chip_hours']:,.0f}"


def with_table(page: str) -> str:
    """The page with the table of the plans between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Runs the command and returns its status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missing", action="store_true", help="keep the plans that are there")
    parser.add_argument("--table", action="store_true", help="only write the table")
    options = parser.parse_args()
    return ending.run("make_plans", lambda: make_all(options.missing, options.table))


def make_all(only_missing: bool, only_table: bool) -> None:
    """Writes the plans, and their table into the page."""
    FOLDER.mkdir(exist_ok=True)
    for config, topology in CASES:
        is_there = path_of(config, topology).exists()
        if not only_table and not (only_missing and is_there):
            make(config, topology)
    PAGE.write_text(with_table(PAGE.read_text()))


if __name__ == "__main__":
    ending.process(main)
