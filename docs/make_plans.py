"""Plans of the paper's models and a larger one:
docs/plans/*.json and the table docs/plans/README.md.

Usage: make_plans.py [--missing] [--table]. With --missing, plans that are there stay; with --table
nothing is compiled. A plan takes one to some minutes of one core, most of it in the compiler.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hyla_lm import ending
from hyla_lm.errors import UserError
from hyla_lm.storage import write_whole

FOLDER = Path(__file__).parent / "plans"
CONFIGS = ("hyla", "softmax", "linear")
TOPOLOGIES = ("v5e:2x4", "v5e:4x4", "v5e:8x8", "v5e:16x16")
# The parameters of this one are divided; the paper's are whole on each chip.
LARGE = ("1b_hyla", "v5e:16x16")
CASES = [*((config, topology) for topology in TOPOLOGIES for config in CONFIGS), LARGE]
# The largest batch is searched for on one slice; in pure data parallelism it is that of all.
COMPILES = {"v5e:4x4": 2}
# Plans are of the step alone: norms by layer add a pass over the parameters, and looks are no step.
UNMEASURED = ("LogConfig.layers=False", "LogConfig.details_every=0")
GIB = 2**30
COLUMNS = (
    *("config", "slice", "GiB per chip", "largest batch", "collectives"),
    *("step ms", "tokens/s", "MFU", "chip-hours"),
)
HEAD = f"""# Plans of gin/c4_50m_*.gin and gin/c4_1b_hyla.gin

Made by `make plans` from the JSON files beside this one. The models of 50M: batch 256 rows of 512
tokens, 1,000,000 steps. That of 1B (1b_hyla): 512 rows of 1024 tokens, 40,000 steps, its parameters
divided over 16 chips (fsdp) and its batch over all.
Ranges are from the shortest to the longest predicted step; nothing here was measured
(`docs/plan.md` says how to read it).
Norms by layer (LogConfig.layers) are left out. The largest batch is searched for on one slice; a
chip holds as many rows on the others. A slice without a line has not been planned.

These plans are older than two changes and say too much: whole arrays counted in every trip of a
loop that stacks them (`hyla_lm/tools/cycles/operations.py`), and the HYLA kernel has become faster
since.

| {" | ".join(COLUMNS)} |
|{" --- |" * len(COLUMNS)}
"""


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


def row(config: str, plan: dict[str, Any]) -> str:
    short, long = plan["predicted"]["shortest"], plan["predicted"]["longest"]
    kinds = sorted({x["kind"] for x in plan["collectives"]})
    megabytes = sum(x["bytes"] * x["times"] for x in plan["collectives"]) / 1e6

    def between(key: str, form: str, scale: float = 1.0) -> str:
        ends = sorted((short[key], long[key]))
        return " to ".join(form.format(end * scale) for end in ends)

    cells = [
        config,
        plan["topology"],
        f"{plan['memory']['total'] / GIB:.2f}",
        largest(plan["largest_batch"]),
        f"{', '.join(kinds)} {megabytes:,.0f} MB",
        between("step_seconds", "{:.1f}", 1e3),
        between("tokens_per_second", "{:,.0f}"),
        between("mfu", "{:.0%}"),
        between("chip_hours", "{:,.0f}"),
    ]
    return f"| {' | '.join(cells)} |\n"


def largest(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not searched"
    return f"{found['rows']:,}" if found["too_many"] else f"at least {found['rows']:,}"


def main() -> int:
    """Runs the command and returns its status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missing", action="store_true", help="keep the plans that are there")
    parser.add_argument("--table", action="store_true", help="only write the table")
    options = parser.parse_args()
    return ending.run("make_plans", lambda: make_all(options.missing, options.table))


def make_all(only_missing: bool, only_table: bool) -> None:
    """Writes the plans and their table."""
    FOLDER.mkdir(exist_ok=True)
    for config, topology in CASES:
        is_there = path_of(config, topology).exists()
        if not only_table and not (only_missing and is_there):
            make(config, topology)
    known = [(config, path) for config, t in CASES if (path := path_of(config, t)).exists()]
    rows = [row(config, json.loads(path.read_text())) for config, path in known]
    (FOLDER / "README.md").write_text(HEAD + "".join(rows))


if __name__ == "__main__":
    ending.process(main)
