"""The interventions on one run, and the R2 that they leave on held-out functions.

R2 is pooled: 1 - squared error over the variance of the targets. It is taken toward the function of
the sequence, and toward the function whose codes were put in its place.

Dimensions: B sequences, N points of a sequence, C combinations of terms, K terms of one,
L layers, H heads.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
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
EXAMPLES_AT_ONCE = 128
MEAN_EXAMPLES = 128
Batch = dict[str, jax.Array]
Layers = list[Operands]
R2s = dict[str, dict[str, float]]


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

    def examples(self, start: int, count: int) -> Batch:
        """Rows of the evaluation set, as evaluation draws them."""
        drawn: Batch = self._draw(self._key, jnp.arange(start, start + count))
        return drawn

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

    def sequences(self, x_BxNxL: jax.Array, terms_BxK: Any) -> Batch:
        made: Batch = self._example(x_BxNxL, jnp.asarray(terms_BxK))
        return made

    def observe(self, batch: Batch) -> Layers:
        """The operands of all layers when nothing is changed."""
        layers: Layers = self._observe(self._params, batch["features"])
        return layers

    def predict(self, batch: Batch, other: Layers, masks: Masks) -> np.ndarray:
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


def measure(subject: Subject, examples: int) -> R2s:
    """R2 by intervention over the first examples of the evaluation set, in whole batches."""
    means = _means(subject)
    answers: dict[str, list[np.ndarray]] = defaultdict(list)
    own: list[np.ndarray] = []
    donors: dict[str, list[np.ndarray]] = defaultdict(list)
    for start in range(0, examples, EXAMPLES_AT_ONCE):
        batch = subject.examples(start, EXAMPLES_AT_ONCE)
        own.append(np.asarray(batch["target"]))
        for name, other, masks, donor_target in _changes(subject, batch, means, start):
            answers[name].append(subject.predict(batch, other, masks))
            if donor_target is not None:
                donors[name].append(np.asarray(donor_target))
    target = np.concatenate(own)
    measured = {}
    for name, parts in answers.items():
        answer = np.concatenate(parts)
        measured[name] = {"own_r2": r2(answer, target)}
        if name in donors:
            measured[name]["donor_r2"] = r2(answer, np.concatenate(donors[name]))
    return measured


def r2(answer: np.ndarray, target: np.ndarray) -> float:
    """1 - squared error over variance, of all sequences together."""
    return float(1 - np.mean(np.square(answer - target)) / np.var(target))


def _means(subject: Subject) -> Layers:
    """The mean operands of each held-out function, with a leading axis of functions."""
    table, draw = subject.table_CxK, np.random.default_rng(0)
    of_functions = []
    points = subject.examples(0, MEAN_EXAMPLES)["features"][..., :-1].shape
    for terms_K in table:
        x_BxNxL = jnp.asarray(draw.random(points), jnp.float32)
        batch = subject.sequences(x_BxNxL, np.broadcast_to(terms_K, (len(x_BxNxL), len(terms_K))))
        of_functions.append(_map(lambda x: x.mean(0), subject.observe(batch)))
    stacked: Layers = jax.tree.map(lambda *x: jnp.stack(x), *of_functions)
    return stacked


def _of(subject: Subject, means: Layers, batch: Batch) -> Layers:
    """The means of the sequences' functions."""
    same_BxC = (np.asarray(batch["terms"])[:, None] == subject.table_CxK).all(-1)
    function_B = np.argmax(same_BxC, axis=1)
    return _map(lambda x_C: x_C[function_B], means)


def _shuffled(own: Layers, start: int) -> Layers:
    """Each pair of tokens has the codes of the same pair in another sequence of its own."""

    def shuffle(x: jax.Array, *, key: jax.Array) -> jax.Array:
        pairs = jax.random.uniform(key, (x.shape[0], 1, *x.shape[2:]))
        return jnp.take_along_axis(x, jnp.argsort(pairs, axis=0), axis=0)

    keys = jax.random.split(jax.random.key(start), len(own))
    return [
        layer._replace(codes=_map(partial(shuffle, key=key), layer.codes))
        for layer, key in zip(own, keys, strict=True)
    ]


def _map(function: Callable[[jax.Array], jax.Array], tree: Any) -> Any:
    return jax.tree.map(function, tree)


# Name, the replacement, what of it is taken, and the donor's targets where there is a donor.
Change = tuple[str, Layers, Masks, Any]


def _changes(subject: Subject, batch: Batch, means: Layers, start: int) -> Iterator[Change]:
    everywhere, heads, layers = subject.masks(), subject.config.num_heads, subject.config.num_layers
    own = subject.observe(batch)
    yield "none", own, subject.masks(values=True), None
    stranger, cousin = (subject.donors(batch, shared, start) for shared in (0, 1))
    theirs, target = subject.observe(stranger), stranger["target"]
    yield "swap, no term shared", theirs, everywhere, target
    yield "swap, a term shared", subject.observe(cousin), everywhere, cousin["target"]
    for layer in range(layers):
        only = (np.arange(layers) == layer)[:, None]
        yield f"swap in layer {layer}", theirs, subject.masks(only), target
    yield "swap of values", theirs, subject.masks(False, True), target
    yield "swap of both", theirs, subject.masks(True, True), target
    relatives = subject.observe(subject.relatives(batch, start))
    yield "same function, other points", relatives, everywhere, None
    of_task, of_stranger = (_of(subject, means, x) for x in (batch, stranger))
    yield "mean of the function", of_task, everywhere, None
    yield "mean of another function", of_stranger, everywhere, target
    count = len(batch["target"])
    grand = _map(lambda x_C: jnp.broadcast_to(x_C.mean(0), (count, *x_C.shape[1:])), means)
    yield "mean of all", grand, everywhere, None
    yield (
        "another sequence",
        _map(lambda x: jnp.roll(x, 1, axis=0), own),
        everywhere,
        jnp.roll(batch["target"], 1),
    )
    frozen = _map(lambda x: jnp.broadcast_to(x[:1], x.shape), own)
    yield "frozen to one sequence", frozen, everywhere, None
    yield "shuffled by pair", _shuffled(own, start), everywhere, None
    zero = _map(jnp.zeros_like, own)
    for layer in range(layers):
        for head in range(heads):
            only = np.zeros((layers, heads), bool)
            only[layer, head] = True
            yield f"layer {layer}, head {head} to 0", zero, subject.masks(only), None
            yield f"layer {layer}, head {head} to its mean", grand, subject.masks(only), None
