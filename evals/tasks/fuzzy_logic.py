"""Fuzzy logic in context: functions of K terms over L variables, inferred from N - 1 examples.

A function is the maximum of K terms; a term is the minimum of all L variables, each plain or
negated (paper Eq. 8 and 9). Term i negates the variables whose bit in i is 0; the first variable
has the highest bit. Training draws combinations of K known terms. Held-out combinations of known
terms test composition (the paper's OOD R2; its code's `test`). Terms that are never trained cannot
be learned; their combinations are a control (the code's `ood`).

Dimensions: B batch, N examples of a function with the query last, L variables, K terms,
C combinations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.draws import below, random_bits
from hyla_lm.evals.tasks.generated import GeneratedConfig
from hyla_lm.evals.tasks.regression import RegressionTask, in_context
from hyla_lm.evals.tasks.splits import combined, make_split
from hyla_lm.model.config import Features


@configurable
@dataclass(frozen=True)
class FuzzyLogic(GeneratedConfig):
    """In-context regression of fuzzy-logic functions, split by the pairs of their terms."""

    ranked_by: ClassVar[str] = "validation/held_out_r2"

    num_variables: int = setting(4, "L, variables; there are 2^L terms", choices=range(1, 11))
    num_terms: int = setting(2, "K, terms of a function", minimum=1)
    sequence_length: int = setting(32, "N, examples of a function, the query included", minimum=2)
    unknown_terms: tuple[int, ...] | None = setting(
        None, "terms that are never trained; None takes the last quarter"
    )

    def check(self) -> None:
        count, unknown = 2**self.num_variables, self.unknown
        if len(set(unknown)) != len(unknown) or not set(unknown) <= set(range(count)):
            raise UserError(
                f"FuzzyLogic.unknown_terms = {unknown} must be different numbers below {count}."
            )
        for kind, terms in (("known", self.known), ("unknown", unknown)):
            if len(terms) < self.num_terms and (terms or kind == "known"):
                raise UserError(
                    f"FuzzyLogic.num_terms = {self.num_terms} is more than the {len(terms)} {kind} "
                    "terms: lower it, raise FuzzyLogic.num_variables or set "
                    "FuzzyLogic.unknown_terms."
                )

    @property
    def unknown(self) -> tuple[int, ...]:
        if self.unknown_terms is not None:
            return self.unknown_terms
        count = 2**self.num_variables
        return tuple(range(count - count // 4, count))

    @property
    def known(self) -> tuple[int, ...]:
        return tuple(sorted(set(range(2**self.num_variables)) - set(self.unknown)))

    def prepare_task(self, batch_size: int) -> "FuzzyLogicTask":
        settings = "FuzzyLogic.num_variables and num_terms"
        tables = make_split(combined(self.known, self.num_terms, settings), self)
        if self.unknown:
            tables["unknown_terms"] = combined(self.unknown, self.num_terms, settings)
        return FuzzyLogicTask(self, tables)


@dataclass(frozen=True)
class FuzzyLogicTask(RegressionTask):
    """The prepared task; see hyla_lm.tasks.protocol.Task."""

    config: FuzzyLogic
    tables: Mapping[str, np.ndarray]

    @cached_property
    def io(self) -> Features:
        return Features(self.config.num_variables + 1, 1, answers=1)

    @property
    def sequence_length(self) -> int:
        return self.config.sequence_length

    @property
    def missing_terms(self) -> list[int]:
        """Terms of held-out combinations that no training combination has."""
        return np.setdiff1d(self.tables["held_out"], self.tables["train"]).tolist()

    def summary(self) -> dict[str, str]:
        c, unknown = self.config, len(self.tables.get("unknown_terms", ()))
        missing = ", ".join(map(str, self.missing_terms))
        return {
            "data": f"fuzzy logic, {c.num_terms} of {2**c.num_variables} terms over "
            f"{c.num_variables} variables, {c.sequence_length} examples",
            "split": f"{self.split_summary('combinations')}, {unknown} of unknown terms"
            + (f"; terms {missing} are held out but never trained" if missing else ""),
        }

    def example(self, key: jax.Array, combinations_CxM: jax.Array) -> dict[str, jax.Array]:
        c = self.config
        terms_key, input_key = jax.random.split(key)
        (choice,) = random_bits(terms_key, ())
        terms_K = jnp.asarray(combinations_CxM)[below(choice, len(combinations_CxM))]
        x_NxL = jax.random.uniform(input_key, (c.sequence_length, c.num_variables))
        return example_of(x_NxL, terms_K)


def term_bits(term: Any, num_variables: int) -> jax.Array:
    """The signs of terms, ...xL: 1 where the variable stands plain, 0 where negated."""
    return (jnp.asarray(term)[..., None] >> jnp.arange(num_variables - 1, -1, -1)) & 1


def fuzzy_function(x_NxL: jax.Array, terms_K: jax.Array) -> jax.Array:
    """Values, N, of the function with these terms at points in [0, 1]^L (Eq. 8 and 9)."""
    bits_KxL = term_bits(terms_K, x_NxL.shape[-1])
    literal_NxKxL = jnp.where(bits_KxL == 1, x_NxL[:, None], 1 - x_NxL[:, None])
    return jnp.max(jnp.min(literal_NxKxL, axis=-1), axis=-1)


def example_of(x_NxL: jax.Array, terms_K: jax.Array) -> dict[str, jax.Array]:
    """The sequence of these points under the function with these terms."""
    return {**in_context(x_NxL, fuzzy_function(x_NxL, terms_K)), "terms": terms_K}
