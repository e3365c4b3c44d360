"""Softmax and HYLA on v5e-16 against a plain XLA step, by the same method: make bench-plan.

Plain is what XLA makes of the definition: full matrices of scores and pairs, and float32 logits of
all positions at once, at the largest batch that fits. Ours is gin/c4_50m_*.gin at batch 256. Both
are planned in this run; the result is docs/plans/plain.json. Ends with an error unless softmax is
predicted twice and HYLA four times as fast by both methods.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[2] / "docs" / "plans" / "plain.json"
LEAST = {"softmax": 2.0, "hyla": 4.0}
METHODS = ("estimated", "counted")
PLAIN = ('ModelConfig.attention_implementation="reference"', "LanguageModel.logit_chunk=512")
PLAIN_BATCH = 64  # from which the search for the largest that fits starts


def plan(attention: str, *bindings: str, compiles: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "hyla_lm", "plan", "--json", "--topology=v5e:4x4"]
    command += [f"--gin_file=gin/c4_50m_{attention}.gin", f"--compiles={compiles}"]
    command += [f"--gin.{binding}" for binding in bindings]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def tokens_per_second_a_chip(planned: dict[str, Any], method: str) -> float:
    """With no collective hidden behind the compute."""
    seconds = planned["step_seconds"]
    step = seconds[f"{method}_compute"] + seconds["collectives"]
    return planned["tokens_a_step"] / step / planned["chips"]


def largest_plain(attention: str) -> dict[str, Any]:
    first = plan(attention, *PLAIN, f"TrainConfig.batch_size={PLAIN_BATCH}", compiles=6)
    rows = first["largest_batch"]["rows"]
    return plan(attention, *PLAIN, f"TrainConfig.batch_size={rows}") | {
        "largest_batch": first["largest_batch"]
    }


def compare(attention: str) -> dict[str, Any]:
    ours, plain = plan(attention), largest_plain(attention)
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


def main() -> int:
    found = {attention: compare(attention) for attention in LEAST}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    slow = 0
    for attention, result in found.items():
        for method in METHODS:
            ratio = result["ratio"][method]
            slow += ratio < LEAST[attention]
            print(f"{attention} {method}: {ratio:.2f} times plain at batch {result['plain_batch']}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
