"""Softmax and HYLA on v5e-16 against a plain XLA step, by the same method: make bench-plan.

Plain is what XLA makes of the definition: full matrices of scores and pairs, and float32 logits of
all positions at once, differentiated by JAX (plain_step.py), at the largest batch that fits; with
bfloat16 activations, as ours, and with float32, NanoDO's default. Ours is gin/c4_50m_*.gin at batch
256. All are planned in this run; the result is docs/plans/plain.json. Ends with an error unless
softmax is predicted twice and HYLA four times as fast by both methods.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[2] / "docs" / "plans" / "plain.json"
LEAST = {"softmax": 2.0, "hyla": 4.0}
METHODS = ("estimated", "counted")
DTYPES = ("bfloat16", "float32")
PLAIN = (str(Path(__file__).with_name("plain_step.py")),)
PLAIN_BATCH = {"softmax": 2048, "hyla": 384}  # from which the search for the largest starts


def plan(
    attention: str, *bindings: str, compiles: int = 0, program: Sequence[str] = ("-m", "hyla_lm")
) -> dict[str, Any]:
    command = [sys.executable, *program, "plan", "--json", "--topology=v5e:4x4"]
    command += [f"--gin_file=gin/c4_50m_{attention}.gin", f"--compiles={compiles}"]
    command += [f"--gin.{binding}" for binding in bindings]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def tokens_per_second_a_chip(planned: dict[str, Any], method: str) -> float:
    """With no collective hidden behind the compute."""
    seconds = planned["step_seconds"]
    step = seconds[f"{method}_compute"] + seconds["collectives"]
    return planned["tokens_a_step"] / step / planned["chips"]


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

    first = plain(PLAIN_BATCH[attention], 6)
    largest = first["largest_batch"]
    found = first if largest["rows"] == first["batch_size"] else plain(largest["rows"], 0)
    return found | {"largest_batch": largest}


def compare(ours: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    rates = {
        method: {
            "plain": tokens_per_second_a_chip(plain, method),
            "ours": tokens_per_second_a_chip(ours, method),
        }
        for method in METHODS
    }
    return {
        "plain_batch": plain["batch_size"],
        "plain_largest_batch": plain["largest_batch"],
        "batch": ours["batch_size"],
        "tokens_per_second_a_chip": rates,
        "ratio": {method: rates[method]["ours"] / rates[method]["plain"] for method in METHODS},
        "spread": {"plain": plain["spread"], "ours": ours["spread"]},
    }


def keep(found: dict[str, Any]) -> None:
    """Writes aside, then renames."""
    RESULT.parent.mkdir(exist_ok=True)
    partial = RESULT.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(RESULT)


def main() -> int:
    found: dict[str, Any] = {}
    slow = 0
    for attention, least in LEAST.items():
        ours = plan(attention)
        for dtype in DTYPES:
            result = compare(ours, largest_plain(attention, dtype))
            found[f"{attention}_{dtype}"] = result
            for method, ratio in result["ratio"].items():
                slow += ratio < least
                rows = result["plain_batch"]
                print(f"{attention} {method}: {ratio:.2f} times plain {dtype} at batch {rows}")
    keep(found)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
