"""Latent codes of a trained model on fresh examples of fuzzy logic or SRAVEN, with labels.

The codes are of the last token, the query, with itself.

Dimensions: N layers, B examples, C size of a code, M features, K terms.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.draws import orders, random_bits
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogicTask, example_of
from hyla_lm.evals.tasks.generated import key_of, keys_of_rows
from hyla_lm.evals.tasks.sraven import (
    SravenTask,
    draw_instance,
    draw_unambiguous,
    permute_columns,
    tokenize,
)
from hyla_lm.evals.tasks.sraven_rules import COLUMNS
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import attention_layers

EXAMPLES_AT_ONCE = 128
Examples = dict[str, jax.Array]
Draw = Callable[[jax.Array, jax.Array, jax.Array], Examples]


@dataclass(frozen=True)
class Choices:
    """The examples and codes to look at.

    fixed: inputs of fuzzy logic that are the same in all examples: "nothing", the "context", as for
    the paper's Figure 2, or the "query", as in its code's probe.
    """

    examples: int = 4096
    seed: int = 0
    fixed: str = "nothing"


class CodeSample(NamedTuple):
    """Codes of each layer, and labels of each example."""

    code_NxBxC: np.ndarray
    labels: Mapping[str, np.ndarray]


def collector(
    model: Decoder, params: Any, task: Any, choices: Choices
) -> Callable[[str, str], CodeSample]:
    """A function of a set and of a purpose: it gives codes of fresh examples of the set.

    The purpose is part of their seed. Raises UserError for a task that is neither fuzzy logic nor
    SRAVEN.
    """
    draw = draw_of(task, choices)

    @jax.jit
    def look(
        params: Any, key: jax.Array, row_B: jax.Array, table: jax.Array
    ) -> tuple[jax.Array, Examples]:
        examples = draw(key, row_B, table)
        layers = attention_layers(model, params, examples.pop("features"))
        return jnp.stack([layer.code_BxHxTxS[:, :, -1, -1] for layer in layers]), examples

    def collect(set_name: str, purpose: str) -> CodeSample:
        count = choices.examples
        table = jnp.asarray(task.tables[set_name])
        key = key_of(choices.seed, f"{purpose} {set_name}")
        rows = [jnp.arange(s, s + EXAMPLES_AT_ONCE) for s in range(0, count, EXAMPLES_AT_ONCE)]
        parts = [jax.device_get(look(params, key, row_B, table)) for row_B in rows]
        codes, labels = zip(*parts, strict=True)
        return CodeSample(
            np.concatenate(codes, axis=1)[:, :count],
            {name: np.concatenate([p[name] for p in labels])[:count] for name in labels[0]},
        )

    return collect


def draw_of(task: Any, choices: Choices) -> Draw:
    """Draws `features` and labels; see `collector`."""
    if isinstance(task, FuzzyLogicTask):
        return _fuzzy_draw(task, choices)
    if isinstance(task, SravenTask):
        return _sraven_draw(task)
    raise UserError(
        f"latent codes need a run of fuzzy logic or SRAVEN, this is one of {type(task).__name__}: "
        "from Python, hyla_lm.load(...).latent_codes gives those of a language model."
    )


def _fuzzy_draw(task: FuzzyLogicTask, choices: Choices) -> Draw:
    length, variables = task.config.sequence_length, task.config.num_variables

    def draw(key: jax.Array, row_B: jax.Array, table: jax.Array) -> Examples:
        batch = task.draw(key, row_B, table)
        if choices.fixed != "nothing":
            same_NxL = jax.random.uniform(key_of(choices.seed, "fixed"), (length, variables))
            is_query_Nx1 = jnp.arange(length)[:, None] == length - 1
            is_fixed_Nx1 = is_query_Nx1 == (choices.fixed == "query")
            x_BxNxL = jnp.where(is_fixed_Nx1, same_NxL, batch["features"][..., :-1])
            batch = jax.vmap(example_of)(x_BxNxL, batch["terms"])
        return {name: batch[name] for name in ("features", "terms", "target")}

    return draw


def _sraven_draw(task: SravenTask) -> Draw:
    """Draws instances with the rule of the feature that the last query asks for."""
    c = task.config

    def draw(key: jax.Array, row_B: jax.Array, table: jax.Array) -> Examples:
        def once(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            instance_key, order_key = jax.random.split(key)
            rules_M, plain = draw_instance(
                instance_key, table, c.grid_rows, c.num_symbols, permute=False
            )
            order_3xM = orders(random_bits(order_key, (COLUMNS, c.num_features))[0])
            if not c.permute_features:
                order_3xM = jnp.sort(order_3xM)
            return rules_M, permute_columns(plain, order_3xM), order_3xM

        def example(key: jax.Array) -> Examples:
            drawn: Any = draw_unambiguous(once, key, c.num_symbols)
            rules_M, instance, order_3xM = drawn if c.filter_ambiguous else once(key)
            tokens = tokenize(instance, c.num_symbols)
            return {
                "features": tokens["features"],
                "rule": rules_M[order_3xM[-1, -1]],
                "target": tokens["target"][-1],
            }

        return jax.vmap(example)(keys_of_rows(key, row_B))

    return draw
