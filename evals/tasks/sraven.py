"""SRAVEN: symbolic Raven matrices whose features must first be found (paper, Section 4 and B).

Each of M features follows one of eight rules within rows of three panels. The features of each
column are permuted in the same way in all rows. The model sees all panels except the last, a token
for each feature, and fills in the last at M query tokens. Training draws multisets of M rules;
held-out ones test composition (`ood` in the paper's code, whose `test` repeats training).

About a quarter of the instances have several consistent answers (see evals/tasks/ambiguity.py),
so no solver reaches an accuracy of 1; the closing lines give the best possible one.

Dimensions: B batch, R rows of the grid, M features, K symbols, T = 3 R M tokens, C rule multisets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.config.declare import configurable, setting
from hyla_lm.evals.tasks.ambiguity import is_ambiguous, posterior
from hyla_lm.evals.tasks.draws import below, orders, random_bits
from hyla_lm.evals.tasks.generated import GeneratedConfig, GeneratedTask
from hyla_lm.evals.tasks.splits import make_split
from hyla_lm.evals.tasks.sraven_rules import COLUMNS, RULES, draw_grids
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import Features
from hyla_lm.model.decoder import Decoder
from hyla_lm.tasks.protocol import Batch

CEILING_EXAMPLES = 512


@configurable
@dataclass(frozen=True)
class Sraven(GeneratedConfig):
    """Symbolic Raven matrices, split by the multisets of their rules."""

    ranked_by: ClassVar[str] = "validation/held_out_accuracy"

    held_out_fraction: float = setting(0.25, "share of rule multisets held out of training")
    num_features: int = setting(
        4, "M, features of a panel; ambiguity tries (M!)^2 arrangements", choices=(1, 2, 3, 4)
    )
    num_symbols: int = setting(8, "K, symbols; distribute three needs 3", minimum=3, maximum=256)
    grid_rows: int = setting(3, "R, rows of three panels", minimum=2, maximum=10)
    permute_features: bool = setting(True, "whether features are permuted in each column")
    filter_ambiguous: bool = setting(
        False, "draw again instances with several consistent answers, also for evaluation"
    )

    def prepare_task(self, batch_size: int) -> "SravenTask":
        rules = range(len(RULES))
        multisets = np.array(list(combinations_with_replacement(rules, self.num_features)))
        return SravenTask(self, make_split(multisets, self))


@dataclass(frozen=True)
class SravenTask(GeneratedTask):
    """The prepared task; see hyla_lm.tasks.protocol.Task."""

    closing: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy",
        "of unambiguous ones": "unambiguous_accuracy",
        "of a feature": "feature_accuracy",
    }
    config: Sraven
    tables: Mapping[str, np.ndarray]

    @cached_property
    def io(self) -> Features:
        c = self.config
        return Features(c.num_symbols, c.num_symbols, answers=c.num_features)

    @property
    def sequence_length(self) -> int:
        return COLUMNS * self.config.grid_rows * self.config.num_features

    def summary(self) -> dict[str, str]:
        c = self.config
        return {
            "data": f"SRAVEN, {c.num_features} features of {c.num_symbols} symbols, "
            f"{c.grid_rows} rows" + (", without ambiguous ones" if c.filter_ambiguous else ""),
            "split": self.split_summary("rule multisets"),
        }

    def example(self, key: jax.Array, combinations_CxM: jax.Array) -> dict[str, jax.Array]:
        c, table = self.config, jnp.asarray(combinations_CxM)

        def once(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            return draw_instance(key, table, c.grid_rows, c.num_symbols, c.permute_features)

        filtered = c.filter_ambiguous
        rules_M, instance = draw_unambiguous(once, key, c.num_symbols) if filtered else once(key)
        return {"rules": rules_M, "instance": instance, **tokenize(instance, c.num_symbols)}

    def draw_for_evaluation(
        self, key: jax.Array, row_B: jax.Array, combinations_CxM: jax.Array
    ) -> dict[str, jax.Array]:
        """`draw`, with a flag for instances that have several consistent answers."""
        batch = self.draw(key, row_B, combinations_CxM)
        flag = jax.vmap(lambda instance: is_ambiguous(instance, self.config.num_symbols))
        return {**batch, "ambiguous": flag(batch["instance"])}

    def score(
        self, output_BxTxO: jax.Array, batch: Batch, weight_B: jax.Array
    ) -> tuple[Pair, Metrics]:
        """Loss and accuracy of the ninth panel; in evaluation also of unambiguous instances."""
        metrics = panel_metrics(output_BxTxO, batch["target"], weight_B)
        if "ambiguous" in batch:
            flagged_B = weight_B * batch["ambiguous"]
            clear = panel_metrics(output_BxTxO, batch["target"], weight_B - flagged_B)
            metrics["ambiguous"] = (jnp.sum(flagged_B), jnp.sum(weight_B))
            metrics["unambiguous_accuracy"] = clear["accuracy"]
        return metrics["loss_nats"], metrics

    def closing_lines(
        self, model: Decoder, params: Any, validation: Mapping[str, float]
    ) -> list[str]:
        """Accuracy on each evaluation set beside that of the best possible solver."""
        header, *lines = super().closing_lines(model, params, validation)
        ceilings = [self.ceiling(name) for name in self.evaluation_names()]
        beside = [f"{value:>14.3f} ± {error:.3f}" for value, error in ceilings]
        return [
            f"{header}{'best possible':>20}",
            *(line + text for line, text in zip(lines, beside, strict=True)),
        ]

    def ceiling(self, name: str) -> tuple[float, float]:
        """The best possible accuracy on an evaluation set, and its standard error.

        This solver knows how instances are drawn, but not which multisets are held out.
        """
        if self.config.filter_ambiguous:
            return 1.0, 0.0
        rows = jnp.arange(CEILING_EXAMPLES)
        batch = self._drawers[name](self.evaluation_key(name), rows)
        best = posterior(np.asarray(batch["instance"]), self.config.num_symbols).largest
        return float(best.mean()), float(best.std() / len(best) ** 0.5)


def draw_instance(
    key: jax.Array, multisets_CxM: jax.Array, num_rows: int, num_symbols: int, permute: bool = True
) -> tuple[jax.Array, jax.Array]:
    """Rules, M, and panels, Rx3xM, of one instance.

    Before the permutation, feature m follows the m-th rule of the sorted multiset.
    """
    choice_key, grid_key = jax.random.split(key)
    num_multisets, num_features = multisets_CxM.shape
    choice, order_bits_3xM = random_bits(choice_key, (), (COLUMNS, num_features))
    rules_M = multisets_CxM[below(choice, num_multisets)]
    instance = jnp.moveaxis(draw_grids(grid_key, rules_M, num_rows, num_symbols), 0, -1)
    return rules_M, permute_columns(instance, orders(order_bits_3xM)) if permute else instance


def permute_columns(instance_Rx3xM: jax.Array, order_3xM: jax.Array) -> jax.Array:
    """Permutes features: place m of column c gets feature order[c, m], in every row."""
    return jnp.take_along_axis(instance_Rx3xM, order_3xM[None], axis=2)


def draw_unambiguous(once: Any, key: jax.Array, num_symbols: int) -> tuple[jax.Array, jax.Array]:
    """The first of `once(fold_in(key, 1))`, `once(fold_in(key, 2))`, … that has one answer.

    Rules are drawn again too, so multisets that are often ambiguous become rarer.
    """

    def drawn(attempt: jax.Array) -> tuple[jax.Array, jax.Array]:
        return once(jax.random.fold_in(key, attempt))

    first = jnp.int32(1)
    return jax.lax.while_loop(
        lambda state: is_ambiguous(state[1][1], num_symbols),
        lambda state: (state[0] + 1, drawn(state[0] + 1)),
        (first, drawn(first)),
    )[1]


def tokenize(instance_Rx3xM: jax.Array, num_symbols: int) -> dict[str, jax.Array]:
    """`features` TxK, one-hot, panel by panel with M zero tokens last, and `target`, M symbols."""
    num_features = instance_Rx3xM.shape[-1]
    symbols_T = instance_Rx3xM.reshape(-1)
    one_hot_TxK = jax.nn.one_hot(symbols_T, num_symbols)
    return {
        "features": one_hot_TxK.at[-num_features:].set(0),
        "target": symbols_T[-num_features:],
    }


def panel_metrics(logits_BxTxK: jax.Array, target_BxM: jax.Array, weight_B: jax.Array) -> Metrics:
    """Cross-entropy of a feature, and accuracy of whole panels and of features."""
    num_features = target_BxM.shape[1]
    logits_BxMxK = logits_BxTxK[:, -num_features:]
    log_p_BxMxK = jax.nn.log_softmax(logits_BxMxK.astype(jnp.float32))
    nats_BxM = -jnp.take_along_axis(log_p_BxMxK, target_BxM[..., None], axis=-1)[..., 0]
    right_BxM = jnp.argmax(logits_BxMxK, axis=-1) == target_BxM
    count = jnp.sum(weight_B)
    loss = (jnp.sum(weight_B[:, None] * nats_BxM), count * num_features)
    return {
        "loss_nats": loss,
        "accuracy": (jnp.sum(weight_B * right_BxM.all(1)), count),
        "feature_accuracy": (jnp.sum(weight_B[:, None] * right_BxM), count * num_features),
    }
