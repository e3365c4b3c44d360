"""A trained fuzzy-logic model that can run with other codes and values than its own.

Dimensions: B sequences, N points of a sequence, C combinations of terms, K terms of one,
L layers, H heads.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogicTask, example_of
from hyla_lm.evals.tasks.generated import key_of
from hyla_lm.model.changed_codes import Operands, apply_changed, operands_of
from hyla_lm.model.config import Features
from hyla_lm.model.decoder import Decoder
from hyla_lm.run.restored import RestoredRun

SET = "held_out"
Layers = list[Operands]


@dataclass(frozen=True)
class Masks:
    """Which codes, by layer and head, and which values, by layer, are replaced."""

    codes_LxH: np.ndarray
    values_L: np.ndarray


class Subject:
    """One run's model, its held-out examples and donors of codes for them."""

    def __init__(self, run: RestoredRun, seed: int):
        task = run.program.task
        if not isinstance(task, FuzzyLogicTask):
            raise UserError(
                f"interventions need runs of fuzzy logic, this is one of {type(task).__name__}."
            )
        self.config = run.program.experiment.model
        if any(self.config.spec(layer).pair_network for layer in range(self.config.num_layers)):
            raise UserError("interventions need attention with one code a pair of tokens.")
        assert isinstance(run.program.model.io, Features)
        model = Decoder(self.config, replace(run.program.model.io, answers=None))
        self._task, self._params, self._seed = task, run.params, seed
        self.table_CxK = np.asarray(task.tables[SET])
        self._key = task.evaluation_key(SET)
        self._draw = jax.jit(partial(task.draw, combinations_CxM=jnp.asarray(self.table_CxK)))
        self._observe = jax.jit(partial(operands_of, model))
        self._predict = jax.jit(partial(_predict, model))
        self._example = jax.jit(jax.vmap(example_of))

    def examples(self, start: int, count: int) -> dict[str, jax.Array]:
        """Rows of the evaluation set, as evaluation draws them."""
        drawn: dict[str, jax.Array] = self._draw(self._key, jnp.arange(start, start + count))
        return drawn

    def donors(self, batch: dict[str, jax.Array], shared: int, start: int) -> dict[str, jax.Array]:
        """Sequences at the same points of held-out functions that share so many terms."""
        terms_BxK = np.asarray(batch["terms"])
        common_BxC = (terms_BxK[:, :, None, None] == self.table_CxK).any(1).sum(-1)
        draws = np.random.default_rng([self._seed, shared, start])
        choice_B = np.argmax(draws.random(common_BxC.shape) * (common_BxC == shared), axis=1)
        if not (np.take_along_axis(common_BxC, choice_B[:, None], 1) == shared).all():
            raise UserError(f"a held-out function has no other that shares {shared} terms.")
        return self.sequences(batch["features"][..., :-1], self.table_CxK[choice_B])

    def relatives(self, batch: dict[str, jax.Array], start: int) -> dict[str, jax.Array]:
        """Sequences of the same functions at other points."""
        key = jax.random.fold_in(key_of(self._seed, "other points"), start)
        x_BxNxL = jax.random.uniform(key, batch["features"][..., :-1].shape)
        return self.sequences(x_BxNxL, batch["terms"])

    def sequences(self, x_BxNxL: jax.Array, terms_BxK: Any) -> dict[str, jax.Array]:
        made: dict[str, jax.Array] = self._example(x_BxNxL, jnp.asarray(terms_BxK))
        return made

    def observe(self, batch: dict[str, jax.Array]) -> Layers:
        """The operands of all layers when nothing is changed."""
        seen: Layers = self._observe(self._params, batch["features"])
        return seen

    def predict(self, batch: dict[str, jax.Array], other: Layers, masks: Masks) -> np.ndarray:
        """The answers, B, if the masked codes and values are those of `other`."""
        answer_B = self._predict(
            self._params, batch["features"], other, masks.codes_LxH, masks.values_L
        )
        return np.asarray(answer_B)

    def masks(self, codes: Any = True, values: Any = False) -> Masks:
        """Masks that are broadcast to all layers and heads."""
        layers, heads = self.config.num_layers, self.config.num_heads
        return Masks(
            np.broadcast_to(np.asarray(codes), (layers, heads)),
            np.broadcast_to(np.asarray(values), (layers,)),
        )


def _predict(
    model: Decoder,
    params: Any,
    features: jax.Array,
    other: Layers,
    codes_LxH: jax.Array,
    values_L: jax.Array,
) -> jax.Array:
    def change(layer: int, own: Operands) -> Operands:
        made = jnp.where(
            codes_LxH[layer][:, None, None], other[layer].codes.made_HxSxT, own.codes.made_HxSxT
        )
        v = jnp.where(values_L[layer], other[layer].v_BxSxHxU, own.v_BxSxHxU)
        return Operands(own.codes._replace(made_HxSxT=made), v)

    return apply_changed(model, params, change, features)[:, -1, 0]
