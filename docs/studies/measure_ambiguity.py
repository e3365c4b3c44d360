"""Measures how ambiguous SRAVEN is, and writes the measurements.

    python docs/studies/measure_ambiguity.py

Instances have all 330 rule multisets, as in the paper's Table A2. Takes about five minutes.
"""

import argparse
import json
from itertools import combinations_with_replacement
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm import ending
from hyla_lm.evals import experiments
from hyla_lm.evals.tasks.ambiguity import Posterior, paper_code_count, posterior
from hyla_lm.evals.tasks.generated import key_of, keys_of_rows
from hyla_lm.evals.tasks.sraven import draw_instance
from hyla_lm.evals.tasks.sraven_rules import RULES
from hyla_lm.parallel.mesh import check_devices
from hyla_lm.storage import write_whole

MEASUREMENTS = Path(experiments.__file__).with_name("ambiguity_measurements.json")
CHUNK = 512
SIZES = ((2, 8), (3, 8), (4, 4), (4, 8), (4, 16))  # features and symbols


def measurements(num_symbols: int, count: int, num_features: int = 4, seed: int = 0) -> dict:
    """Shares of instances and accuracies as [mean, standard error] over `count` instances."""
    multisets = list(combinations_with_replacement(range(len(RULES)), num_features))
    table, key = jnp.array(multisets), key_of(seed, "ambiguity")

    @jax.jit
    def draw(row_B: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            _, instance = draw_instance(key, table, 3, num_symbols)
            return instance, paper_code_count(instance, num_symbols)

        return jax.vmap(one)(keys_of_rows(key, row_B))

    chunks = [jnp.arange(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
    parts = [draw(rows) for rows in chunks]
    answers = [posterior(np.asarray(instances), num_symbols) for instances, _ in parts]
    best = Posterior(*(np.concatenate(column) for column in zip(*answers, strict=True)))
    return {
        "instances": count,
        "several_answers": _mean(best.consistent_panels > 1),
        "ambiguous_by_the_papers_code": _mean(np.concatenate([n for _, n in parts]) > 0),
        "best_accuracy_expected": _mean(best.largest),
        "best_accuracy_achieved": _mean(best.success),
    }


def _mean(values: np.ndarray) -> list[float]:
    error = values.std() / len(values) ** 0.5
    return [round(float(values.mean()), 4), round(float(error), 4)]


def main() -> int:
    """Runs the study and returns its status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser("measure_ambiguity", description=__doc__)
    parser.add_argument("--instances", type=int, default=4096)
    parser.add_argument("--output", type=Path, default=MEASUREMENTS)
    options = parser.parse_args()
    return ending.run("measure_ambiguity", lambda: study(options.instances, options.output))


def study(instances: int, output: Path) -> None:
    """Writes and prints a JSON."""
    check_devices()
    measured = {
        f"M={features} K={symbols}": measurements(symbols, instances, features)
        for features, symbols in SIZES
    }
    write_whole(output, (json.dumps(measured, indent=1) + "\n").encode())
    print(output.read_text(), end="")


if __name__ == "__main__":
    ending.process(main)
