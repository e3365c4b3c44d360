"""The interventions on one run, and the R2 that they leave on held-out functions.

R2 is pooled: 1 - squared error over the variance of the targets. It is taken toward the function of
the sequence, and toward the function whose codes were put in its place.

Dimensions: B sequences, N points of a sequence, C combinations of terms, K terms of one,
L layers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

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
EXAMPLES_AT_ONCE = 128
MEAN_EXAMPLES = 128
Batch = dict[str, jax.Array]
Layers = list[Operands]


class Change(NamedTuple):
    """What is put in the place of a batch's own operands.

    `codes` and `values` say in which layers, L or one for all. `target` is the donor's, where there
    is a donor.
    """

    name: str
    other: Layers
    codes: Any = True
    values: Any = False
    target: Any = None


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
        self._params, self._seed = run.params, seed
        self.table_CxK = np.asarray(task.tables[SET])
        self._key = task.evaluation_key(SET)
        table_CxK = jnp.asarray(self.table_CxK)
        self._draw: Callable[..., Batch] = jax.jit(partial(task.draw, combinations_CxM=table_CxK))
        self._observe: Callable[..., Layers] = jax.jit(partial(operands_of, model))
        self._predict = jax.jit(partial(_predict, model))
        self.sequences: Callable[..., Batch] = jax.jit(jax.vmap(example_of))

    def examples(self, start: int, count: int) -> Batch:
        """Rows of the evaluation set, as evaluation draws them."""
        return self._draw(self._key, jnp.arange(start, start + count))

    def donors(self, batch: Batch, shared: int, start: int) -> Batch:
        """Sequences at the same points of held-out functions that share so many terms."""
        terms_BxK = np.asarray(batch["terms"])
        common_BxC = (terms_BxK[:, :, None, None] == self.table_CxK).any(1).sum(-1)
        draws = np.random.default_rng([self._seed, shared, start])
        choice_B = np.argmax(draws.random(common_BxC.shape) * (common_BxC == shared), axis=1)
        if not (np.take_along_axis(common_BxC, choice_B[:, None], 1) == shared).all():
            raise UserError(f"a held-out function has no other that shares {shared} terms.")
        return self.sequences(batch["features"][..., :-1], self.table_CxK[choice_B])

    def relatives(self, batch: Batch, start: int) -> Batch:
        """Sequences of the same functions at other points."""
        key = jax.random.fold_in(key_of(self._seed, "other points"), start)
        x_BxNxL = jax.random.uniform(key, batch["features"][..., :-1].shape)
        return self.sequences(x_BxNxL, batch["terms"])

    def observe(self, batch: Batch) -> Layers:
        """The operands of all layers when nothing is changed."""
        return self._observe(self._params, batch["features"])

    def predict(
        self, batch: Batch, other: Layers, codes: Any = True, values: Any = False
    ) -> np.ndarray:
        """The answers, B, if the chosen codes and values are those of `other`; see Change."""
        layers = self.config.num_layers
        chosen = [np.broadcast_to(mask, layers) for mask in (codes, values)]
        answer_B = self._predict(self._params, batch["features"], other, *chosen)
        return np.asarray(answer_B)


def _predict(
    model: Decoder,
    params: Any,
    features: jax.Array,
    other: Layers,
    codes_L: jax.Array,
    values_L: jax.Array,
) -> jax.Array:
    def change(layer: int, own: Operands) -> Operands:
        made = jnp.where(codes_L[layer], other[layer].codes.made_HxSxT, own.codes.made_HxSxT)
        v = jnp.where(values_L[layer], other[layer].v_BxSxHxU, own.v_BxSxHxU)
        return Operands(own.codes._replace(made_HxSxT=made), v)

    return apply_changed(model, params, change, features)[:, -1, 0]


def measure(subject: Subject, examples: int) -> dict[str, dict[str, float]]:
    """R2 by intervention over the first examples of the evaluation set, in whole batches."""
    means = _means(subject)
    pairs: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for start in range(0, examples, EXAMPLES_AT_ONCE):
        batch = subject.examples(start, EXAMPLES_AT_ONCE)
        for change in _changes(subject, batch, means, start):
            answer_B = subject.predict(batch, change.other, change.codes, change.values)
            pairs[change.name, "own_r2"].append((answer_B, batch["target"]))
            if change.target is not None:
                pairs[change.name, "donor_r2"].append((answer_B, change.target))
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, toward), parts in pairs.items():
        found[name][toward] = r2(*map(np.concatenate, zip(*parts, strict=True)))
    return found


def r2(answer: np.ndarray, target: np.ndarray) -> float:
    """1 - squared error over variance, of all sequences together."""
    return float(1 - np.mean(np.square(answer - target)) / np.var(target))


def _means(subject: Subject) -> Layers:
    """The mean operands of each held-out function, with a leading axis of functions."""
    draw, of_functions = np.random.default_rng(0), []
    points = subject.examples(0, MEAN_EXAMPLES)["features"][..., :-1].shape
    for terms_K in subject.table_CxK:
        x_BxNxL = jnp.asarray(draw.random(points), jnp.float32)
        batch = subject.sequences(x_BxNxL, np.broadcast_to(terms_K, (len(x_BxNxL), len(terms_K))))
        of_functions.append(jax.tree.map(lambda x: x.mean(0), subject.observe(batch)))
    stacked: Layers = jax.tree.map(lambda *x: jnp.stack(x), *of_functions)
    return stacked


def _shuffled(own: Layers, start: int) -> Layers:
    """Each pair of tokens has the codes of the same pair in a random sequence."""

    def shuffle(x: jax.Array, *, key: jax.Array) -> jax.Array:
        pairs = jax.random.uniform(key, (x.shape[0], 1, *x.shape[2:]))
        return jnp.take_along_axis(x, jnp.argsort(pairs, axis=0), axis=0)

    keys = jax.random.split(jax.random.key(start), len(own))
    return [
        layer._replace(codes=jax.tree.map(partial(shuffle, key=key), layer.codes))
        for layer, key in zip(own, keys, strict=True)
    ]


def _changes(subject: Subject, batch: Batch, means: Layers, start: int) -> Iterator[Change]:
    own = subject.observe(batch)
    yield Change("none", own, values=True)
    stranger, cousin = (subject.donors(batch, shared, start) for shared in (0, 1))
    theirs, target = subject.observe(stranger), stranger["target"]
    yield Change("swap, no term shared", theirs, target=target)
    yield Change("swap, a term shared", subject.observe(cousin), target=cousin["target"])
    for layer in range(len(own)):
        only_L = np.arange(len(own)) == layer
        yield Change(f"swap in layer {layer}", theirs, only_L, target=target)
    yield Change("swap of values", theirs, False, True, target)
    yield Change("swap of both", theirs, True, True, target)
    relatives = subject.observe(subject.relatives(batch, start))
    yield Change("same function, other points", relatives)

    def mean_of(other: Batch) -> Layers:
        same_BxC = (np.asarray(other["terms"])[:, None] == subject.table_CxK).all(-1)
        layers: Layers = jax.tree.map(lambda x_C: x_C[np.argmax(same_BxC, axis=1)], means)
        return layers

    yield Change("mean of the function", mean_of(batch))
    yield Change("mean of another function", mean_of(stranger), target=target)
    rolled: Layers = jax.tree.map(lambda x: jnp.roll(x, 1, axis=0), own)
    yield Change("another sequence", rolled, target=jnp.roll(batch["target"], 1))
    yield Change("shuffled by pair", _shuffled(own, start))
