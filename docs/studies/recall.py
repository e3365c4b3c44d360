"""Associative recall (MQAR): the values of keys that were shown in pairs.

    python -m docs.studies.recall --workdir=runs/recall

A sequence has N pairs of a key and a value, two tokens each, and then keys of the sequence whose
values are asked, as in Arora et al., "Zoology: measuring and improving recall in efficient language
models" (2023). Keys of a sequence differ, values are drawn independently; fewer pairs than 32 have
a token of padding before them. Each method trains at three rates and three seeds together. A run is
a file of docs/results/recall; a method that has all files is not trained again.
"""

import argparse
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from docs.studies.records import RESULTS, keep, machine
from hyla_lm import ending
from hyla_lm.config.declare import configurable, setting
from hyla_lm.evals.populations.train_many import open_member, train_many
from hyla_lm.evals.tasks.draws import below, orders, random_bits
from hyla_lm.evals.tasks.generated import GeneratedConfig, GeneratedTask
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import Features
from hyla_lm.tasks.protocol import Batch

FOLDER = RESULTS.with_name("recall")
METHODS = ("softmax", "hyla", "linear")
RATES, SEEDS = (1e-3, 3e-3, 1e-2), (0, 1, 2)
PAIRS = (8, 16, 32)
GIN = "docs/studies/recall.gin"


@configurable
@dataclass(frozen=True)
class Recall(GeneratedConfig):
    """Values of keys in context, with 8, 16 and 32 pairs in training."""

    num_keys: int = setting(64, "keys; as many values", minimum=max(PAIRS))
    questions: int = setting(32, "keys asked at the end of a sequence", minimum=1)

    def prepare_task(self, batch_size: int) -> "RecallTask":
        counts = {f"pairs_{pairs}": np.array([[pairs]]) for pairs in PAIRS}
        return RecallTask(self, {"train": np.concatenate(list(counts.values())), **counts})


@dataclass(frozen=True)
class RecallTask(GeneratedTask):
    """The prepared task; see hyla_lm.tasks.protocol.Task. A combination is a number of pairs."""

    closing: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy"}
    config: Recall
    tables: Mapping[str, np.ndarray]

    @cached_property
    def io(self) -> Features:
        keys = self.config.num_keys
        return Features(2 * keys + 1, keys, answers=self.config.questions)

    @property
    def sequence_length(self) -> int:
        return 2 * max(PAIRS) + self.config.questions

    def summary(self) -> dict[str, str]:
        return {"data": f"recall of {self.config.num_keys} keys, {PAIRS} pairs"}

    def example(self, key: jax.Array, combinations_CxM: jax.Array) -> dict[str, jax.Array]:
        keys, most = self.config.num_keys, max(PAIRS)
        choice, key_bits, value_bits, asked_bits = random_bits(
            key, (), (keys,), (most,), (self.config.questions,)
        )
        pairs = jnp.asarray(combinations_CxM)[below(choice, len(combinations_CxM)), 0]
        key_N, value_N = orders(key_bits)[:most], below(value_bits, keys)
        shown_Nx2 = jnp.stack([key_N, keys + value_N], axis=1)
        is_padding_N = jnp.arange(most) < most - pairs
        shown_Nx2 = jnp.where(is_padding_N[:, None], 2 * keys, shown_Nx2)
        asked_Q = most - 1 - below(asked_bits, pairs)
        token_T = jnp.concatenate([shown_Nx2.ravel(), key_N[asked_Q]])
        return {"features": jax.nn.one_hot(token_T, 2 * keys + 1), "target": value_N[asked_Q]}

    def score(
        self, output_BxTxO: jax.Array, batch: Batch, weight_B: jax.Array
    ) -> tuple[Pair, Metrics]:
        """Cross-entropy and accuracy of an answer."""
        log_p_BxQxV = jax.nn.log_softmax(output_BxTxO.astype(jnp.float32))
        target_BxQ = batch["target"]
        nats_BxQ = -jnp.take_along_axis(log_p_BxQxV, target_BxQ[..., None], axis=2)[..., 0]
        right_BxQ = log_p_BxQxV.argmax(axis=2) == target_BxQ
        count = jnp.sum(weight_B) * self.config.questions
        loss = (jnp.sum(weight_B[:, None] * nats_BxQ), count)
        return loss, {
            "loss_nats": loss,
            "accuracy": (jnp.sum(weight_B[:, None] * right_BxQ), count),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what is missing and returns a status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser("recall", description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="folder for the runs")
    options = parser.parse_args(arguments)

    def study() -> None:
        for method in METHODS:
            train(method, options.workdir)

    return ending.run("recall", study)


def train(method: str, workdir: Path) -> None:
    """Trains a method at all rates and seeds, and writes what each run answered."""
    runs = {(rate, seed): f"{method}_rate{rate:g}_seed{seed}" for rate in RATES for seed in SEEDS}
    if all((FOLDER / f"{name}.json").exists() for name in runs.values()):
        return
    members = [
        open_member(
            [GIN],
            [
                f"ModelConfig.attention = {method!r}",
                f"OptimizerConfig.learning_rate = {rate}",
                f"SEED = {seed}",
            ],
            str(workdir / name),
        )
        for (rate, seed), name in runs.items()
    ]
    started, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    summaries = train_many(members)
    wall, now = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    costs = {"wall_seconds_of_all": round(wall, 1), "cpu_seconds_of_all": round(cpu, 1)}
    for ((rate, seed), name), summary in zip(runs.items(), summaries, strict=True):
        accuracy = {
            str(pairs): summary["validation"].get(f"pairs_{pairs}_accuracy") for pairs in PAIRS
        }
        facts = {"steps": summary["step"], "parameters": summary["num_params"], **costs}
        run = {"method": method, "learning_rate": rate, "seed": seed, "accuracy": accuracy}
        keep(FOLDER / f"{name}.json", {**run, **facts, "machine": machine()})
        print(name, accuracy, flush=True)


if __name__ == "__main__":
    ending.process(main)
