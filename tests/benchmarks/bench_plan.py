"""Softmax and HYLA on v5e-16 against a plain XLA step, by the same method: make bench-plan.

Usage: bench_plan.py [--missing]. Plain is what XLA makes of the definition: full matrices of scores
and pairs, and float32 logits of all positions at once, differentiated by JAX (plain_step.py), at
the largest batch that fits; with float32 activations, NanoDO's default, and with bfloat16, as ours.
Ours is gin/c4_50m_*.gin at batch 256. The plans of the plain steps go to docs/plans/plain and the
comparison to docs/plans/plain.json; with --missing, plain plans that are there stay. Ends with an
error unless XLA's estimate has softmax twice and HYLA four times as fast as plain in float32; what
counted bundles say is printed beside it.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PLANS = Path(__file__).parents[2] / "docs" / "plans"
RESULT = PLANS / "plain.json"
LEAST = {"softmax": 2.0, "hyla": 4.0}
METHODS = ("estimated", "counted")
DTYPES = ("float32", "bfloat16")
PLAIN = (str(Path(__file__).with_name("plain_step.py")),)
# From which the search for the largest starts.
PLAIN_BATCH = {
    ("softmax", "float32"): 2048,
    ("softmax", "bfloat16"): 2048,
    ("hyla", "float32"): 256,
    ("hyla", "bfloat16"): 384,
}


def plan(
    attention: str, *bindings: str, compiles: int = 0, program: Sequence[str] = ("-m", "hyla_lm")
) -> dict[str, Any]:
    command = [sys.executable, *program, "plan", "--json", "--topology=v5e:4x4"]
    command += [f"--gin_file=gin/c4_50m_{attention}.gin", f"--compiles={compiles}"]
    command += ["--gin.LogConfig.layers=False", "--gin.LogConfig.details_every=0"]
    command += [f"--gin.{binding}" for binding in bindings]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def tokens_per_second_per_chip(planned: dict[str, Any], method: str) -> float:
    """With no collective hidden behind the compute."""
    seconds = planned["step_seconds"]
    step = seconds[f"{method}_compute"] + seconds["collectives"]
    return planned["tokens_per_step"] / step / planned["chips"]


def largest_plain(attention: str, dtype: str) -> dict[str, Any]:
    def plain(rows: int, compiles: int) -> dict[str, Any]:
        return plan(
            attention,
            'ModelConfig.attention_implementation="reference"',
            f'ModelConfig.dtype="{dtype}"',
            f"TrainConfig.batch_size={rows}",
            compiles=compiles,
            program=PLAIN,
        )

    first = plain(PLAIN_BATCH[attention, dtype], 6)
    largest = first["largest_batch"]
    found = first if largest["rows"] == first["batch_size"] else plain(largest["rows"], 0)
    return found | {"largest_batch": largest}


def kept_plain(attention: str, dtype: str, missing: bool) -> dict[str, Any]:
    path = PLANS / "plain" / f"{attention}_{dtype}.json"
    if not (missing and path.exists()):
        keep(path, largest_plain(attention, dtype))
    return json.loads(path.read_text())


def compare(ours: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    if ours["versions"] != plain["versions"]:
        raise SystemExit("the plain plans there are of other versions: run without --missing.")
    rates = {
        method: {
            "plain": tokens_per_second_per_chip(plain, method),
            "ours": tokens_per_second_per_chip(ours, method),
        }
        for method in METHODS
    }
    return {
        "plain_batch": plain["batch_size"],
        "plain_largest_batch": plain["largest_batch"],
        "batch": ours["batch_size"],
        "tokens_per_second_per_chip": rates,
        "ratio": {method: rates[method]["ours"] / rates[method]["plain"] for method in METHODS},
    }


def row(name: str, result: dict[str, Any]) -> str:
    """A line of the table in docs/plan.md; tokens/s per chip in thousands."""
    attention, dtype = name.split("_")
    rates = [result["tokens_per_second_per_chip"][method] for method in METHODS]
    plain, ours = ([f"{rate[side] / 1e3:.1f}" for rate in rates] for side in ("plain", "ours"))
    times = [f"{result['ratio'][method]:.2f}" for method in METHODS]
    cells = [f"{attention}, {dtype}", f"{result['plain_batch']:,}", *plain, *ours, *times]
    return f"| {' | '.join(cells)} |"


def keep(path: Path, found: dict[str, Any]) -> None:
    """Writes aside, then renames."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--missing", action="store_true", help="keep the plain plans that are there"
    )
    options = parser.parse_args()
    found: dict[str, Any] = {}
    ours = {attention: plan(attention) for attention in LEAST}
    for dtype, attention in itertools.product(DTYPES, LEAST):
        result = compare(ours[attention], kept_plain(attention, dtype, options.missing))
        found[f"{attention}_{dtype}"] = result
        keep(RESULT, found)
        print(row(f"{attention}_{dtype}", result))
    ratios = {name: found[f"{name}_float32"]["ratio"]["estimated"] for name in LEAST}
    return 1 if any(ratios[name] < least for name, least in LEAST.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
