"""Latent codes of a trained model on fresh examples of fuzzy logic or SRAVEN, with labels.

The codes are of the last query token. In fuzzy logic they are of the token with itself. In SRAVEN
they are of the token with itself (`site = "self"`, as in the paper's text) or with the two shown
panels of its row, at the tokens of the queried feature (`site = "row"`, as in the paper's code).

Dimensions: N layers, B examples, C size of a code, J keys a query, M features, K terms.
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
    the paper's Figure 2, or the "query", as in its code's probe. order: the order of SRAVEN's
    features, "drawn" as in training or "identity", as in the paper's code.
    """

    examples: int = 4096
    seed: int = 0
    fixed: str = "nothing"
    site: str = "self"
    order: str = "drawn"


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
            key_BxJ = examples.pop("key_position")
            codes = [last_query_codes(layer.code_BxHxTxS, key_BxJ) for layer in layers]
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


def last_query_codes(code_BxHxTxS: jax.Array, key_BxJ: jax.Array) -> jax.Array:
    """The concatenated codes of the last query with J keys: BxJ*H."""
    code_BxJxH = jnp.take_along_axis(
        jnp.swapaxes(code_BxHxTxS[:, :, -1], 1, 2), key_BxJ[..., None], axis=1
    )
    return code_BxJxH.reshape(len(key_BxJ), -1)


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
    """Draws `features`, the `key_position`s, BxJ, of the last query, and labels.

    Raises UserError for a task that is neither fuzzy logic nor SRAVEN.
    """
    if isinstance(task, FuzzyLogicTask):
        return _fuzzy_draw(task, choices)
    if isinstance(task, SravenTask):
        return _sraven_draw(task, choices)
    raise UserError(f"--workdir holds a run of {type(task).__name__}, whose codes have no labels.")


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
        last_Bx1 = jnp.full((len(row_B), 1), length - 1)
        names = ("features", "terms", "target")
        return {"key_position": last_Bx1, **{name: batch[name] for name in names}}

    return draw


def _sraven_draw(task: SravenTask, choices: Choices) -> Draw:
    c = task.config
    is_permuted = c.permute_features and choices.order == "drawn"
    last_row = (c.grid_rows - 1) * COLUMNS * c.num_features

    def draw(key: jax.Array, row_B: jax.Array, table: jax.Array) -> Examples:
        def once(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            instance_key, order_key = jax.random.split(key)
            rules_M, plain = draw_instance(
                instance_key, table, c.grid_rows, c.num_symbols, permute=False
            )
            order_3xM = orders(random_bits(order_key, (COLUMNS, c.num_features))[0])
            if not is_permuted:
                order_3xM = jnp.sort(order_3xM)
            return rules_M, permute_columns(plain, order_3xM), order_3xM

        def example(key: jax.Array) -> Examples:
            drawn: Any = draw_unambiguous(once, key, c.num_symbols)
            rules_M, instance, order_3xM = drawn if c.filter_ambiguous else once(key)
            tokens = tokenize(instance, c.num_symbols)
            feature = order_3xM[-1, -1]
            place_2 = jnp.argmax(order_3xM[:-1] == feature, axis=1)
            row_2 = last_row + jnp.arange(COLUMNS - 1) * c.num_features + place_2
            itself = jnp.array([task.sequence_length - 1])
            return {
                "features": tokens["features"],
                "key_position": itself if choices.site == "self" else row_2,
                "rule": rules_M[feature],
                "target": tokens["target"][-1],
            }

        return jax.vmap(example)(keys_of_rows(key, row_B))

    return draw
