"""Latent codes of a trained model on fresh examples of fuzzy logic or SRAVEN, with labels.

The codes are of the last token, the query, with itself.

Dimensions: N layers, B examples, C size of a code, M features, K terms.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.draws import orders, random_bits
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogicTask, example_of
from hyla_lm.evals.tasks.generated import GeneratedTask, key_of, keys_of_rows
from hyla_lm.evals.tasks.sraven import (
    SravenTask,
    draw_instance,
    draw_unambiguous,
    permute_columns,
    tokenize,
)
from hyla_lm.evals.tasks.sraven_rules import COLUMNS
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import LayerView, attention_layers

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


@dataclass(frozen=True)
class CodeSample:
    """Codes of each layer, labels of each example, and which value units were active.

    `active` has a bool for each value unit of a layer, or None for a layer without a ReLU.
    """

    code_NxBxC: np.ndarray
    labels: Mapping[str, np.ndarray]
    active: list[np.ndarray | None]


class Collector:
    """Collects codes of one model on one task's examples."""

    def __init__(self, model: Decoder, params: Any, task: GeneratedTask, choices: Choices):
        self._params, self._task, self._choices = params, task, choices
        draw = draw_of(task, choices)

        @jax.jit
        def look(
            params: Any, key: jax.Array, row_B: jax.Array, table: jax.Array
        ) -> tuple[jax.Array, Examples, list[jax.Array | None]]:
            examples = draw(key, row_B, table)
            layers = attention_layers(model, params, examples.pop("features"))
            codes = [layer.code_BxHxTxS[:, :, -1, -1] for layer in layers]
            return jnp.stack(codes), examples, [active_units(layer) for layer in layers]

        self._look = look

    def collect(self, set_name: str, purpose: str) -> CodeSample:
        """Codes of fresh examples of a set's combinations; `purpose` is part of their seed.

        `active` covers whole batches, of which the last may go beyond the examples.
        """
        count = self._choices.examples
        table = jnp.asarray(self._task.tables[set_name])
        key = key_of(self._choices.seed, f"{purpose} {set_name}")
        rows = [jnp.arange(s, s + EXAMPLES_AT_ONCE) for s in range(0, count, EXAMPLES_AT_ONCE)]
        parts = [jax.device_get(self._look(self._params, key, row_B, table)) for row_B in rows]
        codes, labels, active = zip(*parts, strict=True)
        return CodeSample(
            np.concatenate(codes, axis=1)[:, :count],
            {name: np.concatenate([p[name] for p in labels])[:count] for name in labels[0]},
            any_active(active),
        )


def any_active(batches: Sequence[Sequence[np.ndarray | None]]) -> list[np.ndarray | None]:
    """For each layer, the units active in any batch; None for a layer without a ReLU."""
    layers = zip(*batches, strict=True)
    return [None if units[0] is None else np.any(units, axis=0) for units in layers]


def active_units(layer: LayerView) -> jax.Array | None:
    """Whether each value unit is above 0 for any pair of tokens; None without a ReLU."""
    spec = layer.request.spec
    if spec.activation != "relu":
        return None
    kept_axes = 2 if spec.value_network == "linear" else 1
    active = [
        jnp.any(unit > 0, axis=tuple(range(unit.ndim - kept_axes))) for unit in layer.value_units()
    ]
    return jnp.concatenate([units.ravel() for units in active])


def draw_of(task: GeneratedTask, choices: Choices) -> Draw:
    """Draws `features` and labels.

    Raises UserError for a task that is neither fuzzy logic nor SRAVEN.
    """
    if isinstance(task, FuzzyLogicTask):
        return _fuzzy_draw(task, choices)
    if isinstance(task, SravenTask):
        return _sraven_draw(task)
    raise UserError(f"the codes of a run of {type(task).__name__} have no labels.")


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
