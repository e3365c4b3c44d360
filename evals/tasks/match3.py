"""Match3: which of N integers have two others with which they sum to 0 modulo M.

The label at position i is 1 if there are positions j and k with x_i + x_j + x_k = 0 (mod M), as in
Sanford, Hsu and Telgarsky, "Representational strengths and limitations of transformers" (2023).

A part is a residue, a combination a triple of different residues that sums to 0. A sequence has T
triples of its set's table and 3 T other residues, which complete no triple. So exactly half of the
labels are 1, and whoever does not look has an accuracy of 1/2. A held-out triple is in no training
sequence, not even by chance.

All residues of a sequence differ. Those with 3 x = 0, which match by themselves, are left out.
Those that complete no triple are drawn as often as they are in the table, so a residue hardly tells
its label.

Dimensions: B batch, N = 6 T tokens, T triples planted, M residues, C triples of a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from math import gcd
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.draws import orders, random_bits, weighted
from hyla_lm.evals.tasks.generated import GeneratedConfig, GeneratedTask
from hyla_lm.evals.tasks.splits import make_split
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import Features
from hyla_lm.tasks.protocol import Batch


@configurable
@dataclass(frozen=True)
class Match3(GeneratedConfig):
    """Integers that sum to 0 modulo M with two others, split by the triples that do."""

    ranked_by: ClassVar[str] = "validation/held_out_accuracy"

    held_out_fraction: float = setting(0.25, "share of triples held out of training")
    modulus: int = setting(47, "M, modulus; integers are below it", minimum=2, maximum=500)
    num_triples: int = setting(1, "T, triples of a sequence, which has 6 T integers", minimum=1)
    num_frequencies: int = setting(
        2, "F, frequencies: x is shown as cos and sin of 2 pi f x / M", minimum=1, maximum=1000
    )

    def check(self) -> None:
        before_last = 6 * self.num_triples - 1
        if self.modulus <= most_taken(before_last, self.num_triples, self.modulus):
            raise UserError(
                f"Match3.modulus = {self.modulus} is too small for Match3.num_triples = "
                f"{self.num_triples}: every integer may complete a triple; raise the modulus."
            )

    def prepare_task(self, batch_size: int) -> "Match3Task":
        tables = make_split(zero_triples(self.modulus), self)
        before_last = self.num_triples - 1
        most = most_taken(3 * before_last, before_last, self.modulus)
        for name, table_Cx3 in tables.items():
            if len(table_Cx3) <= most * np.bincount(table_Cx3.ravel()).max():
                raise UserError(
                    f"Match3.num_triples = {self.num_triples} cannot be planted for sure from the "
                    f"{len(table_Cx3)} triples of {name}: lower it or raise Match3.modulus."
                )
        return Match3Task(self, tables)


@dataclass(frozen=True)
class Match3Task(GeneratedTask):
    """The prepared task; see hyla_lm.tasks.protocol.Task."""

    closing: ClassVar[Mapping[str, str]] = {
        "accuracy (chance .5)": "accuracy",
        "of whole sequences": "sequence_accuracy",
    }
    config: Match3
    tables: Mapping[str, np.ndarray]

    @cached_property
    def io(self) -> Features:
        return Features(2 * self.config.num_frequencies, 1)

    @property
    def sequence_length(self) -> int:
        return 6 * self.config.num_triples

    def summary(self) -> dict[str, str]:
        c = self.config
        return {
            "data": f"Match3, {self.sequence_length} integers modulo {c.modulus}, "
            f"{3 * c.num_triples} of them in triples that sum to 0",
            "split": self.split_summary("triples"),
        }

    def example(self, key: jax.Array, combinations_CxM: jax.Array) -> dict[str, jax.Array]:
        modulus, triples_Cx3 = self.config.modulus, jnp.asarray(combinations_CxM)
        residue_N = draw_residues(key, triples_Cx3, modulus, self.config.num_triples)
        return {
            "features": angles(residue_N, modulus, self.config.num_frequencies),
            "target": matches(residue_N, modulus),
            "residue": residue_N,
        }

    def score(
        self, output_BxTxO: jax.Array, batch: Batch, weight_B: jax.Array
    ) -> tuple[Pair, Metrics]:
        """Cross-entropy and accuracy of a label, and accuracy of whole sequences."""
        logit_BxN, is_match_BxN = output_BxTxO[..., 0].astype(jnp.float32), batch["target"]
        nats_BxN = jax.nn.softplus(jnp.where(is_match_BxN, -logit_BxN, logit_BxN))
        right_BxN = (logit_BxN > 0) == is_match_BxN
        count = jnp.sum(weight_B)
        labels = count * self.sequence_length
        loss = (jnp.sum(weight_B[:, None] * nats_BxN), labels)
        return loss, {
            "loss_nats": loss,
            "accuracy": (jnp.sum(weight_B[:, None] * right_BxN), labels),
            "sequence_accuracy": (jnp.sum(weight_B * right_BxN.all(1)), count),
        }


def zero_triples(modulus: int) -> np.ndarray:
    """Triples a < b < c, Cx3, that sum to 0; without residues that match by themselves."""
    residues = [x for x in range(modulus) if 3 * x % modulus]
    thirds = ((a, b, -(a + b) % modulus) for a, b in combinations(residues, 2))
    return np.array([abc for abc in thirds if abc[2] > abc[1] and 3 * abc[2] % modulus])


def matches(residue_N: jax.Array, modulus: int) -> jax.Array:
    """Whether each integer sums to 0 with two of the sequence, N; two may be one, or itself."""
    sum_NxNxN = residue_N[:, None, None] + residue_N[:, None] + residue_N
    return (sum_NxNxN % modulus == 0).any((1, 2))


def angles(residue_N: jax.Array, modulus: int, num_frequencies: int) -> jax.Array:
    """Cosines and sines, Nx2F, of each integer turned 1 to F times round the circle of M."""
    frequency_F = np.arange(1, num_frequencies + 1)
    turn_NxF = 2 * np.pi * (residue_N[:, None] * frequency_F % modulus) / modulus
    return jnp.concatenate([jnp.cos(turn_NxF), jnp.sin(turn_NxF)], axis=1)


def most_taken(count: int, triples: int, modulus: int) -> int:
    """The most residues that are not free beside `count` present ones, with so many triples."""
    thirds = count * (count + 1) // 2 - 3 * triples  # three thirds of a triple are in it
    halves, selves = count * gcd(2, modulus), gcd(3, modulus)
    return count + thirds + halves + selves


def draw_residues(
    key: jax.Array, triples_Cx3: jax.Array, modulus: int, num_triples: int
) -> jax.Array:
    """A sequence, N: triples and then other residues, put in a random order."""
    length, others = 6 * num_triples, 3 * num_triples
    triple_bits, other_bits, order_bits = random_bits(key, (num_triples,), (others,), (length,))
    weight_M = jnp.maximum(jnp.bincount(triples_Cx3.ravel(), length=modulus), 1)

    def plant(taken: Taken, bits: jax.Array) -> tuple[Taken, jax.Array]:
        # A triple makes another with what is present only if one of its residues does.
        triple_3 = triples_Cx3[weighted(bits, taken.is_free_M[triples_Cx3].all(1))]
        return reduce(Taken.add, triple_3, taken), triple_3

    def fill(taken: Taken, bits: jax.Array) -> tuple[Taken, jax.Array]:
        residue = weighted(bits, taken.is_free_M * weight_M)
        return taken.add(residue), residue

    taken, triple_Tx3 = jax.lax.scan(plant, Taken.nothing(modulus), triple_bits)
    _, other_O = jax.lax.scan(fill, taken, other_bits)
    return jnp.concatenate([triple_Tx3.ravel(), other_O])[orders(order_bits)]


class Taken(NamedTuple):
    """Residues present, M, and those free: new, and in no triple once added; see `matches`."""

    is_present_M: jax.Array
    is_free_M: jax.Array

    @classmethod
    def nothing(cls, modulus: int) -> "Taken":
        return cls(jnp.zeros(modulus, bool), jnp.asarray(3 * np.arange(modulus) % modulus != 0))

    def add(self, residue: jax.Array) -> "Taken":
        """With one more present."""
        modulus = len(self.is_free_M)
        residue_M = np.arange(modulus)
        is_present_M = self.is_present_M.at[residue].set(True)
        is_third_M = is_present_M[-(residue + residue_M) % modulus]
        is_half_M = (2 * residue_M + residue) % modulus == 0
        return Taken(is_present_M, self.is_free_M & ~(is_present_M | is_third_M | is_half_M))
