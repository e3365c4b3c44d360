"""The interventions on one run, and the R2 that they leave on held-out functions.

R2 is pooled: 1 - squared error over the variance of the targets. It is taken toward the function of
the sequence, and toward the function whose codes were put in its place.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.evals.interventions.subject import Layers, Masks, Subject

EXAMPLES_AT_ONCE = 128
MEAN_EXAMPLES = 128
Batch = dict[str, jax.Array]
Found = dict[str, dict[str, float]]
# Name, the replacement, what of it is taken, and the donor's targets where there is a donor.
Change = tuple[str, Layers, Masks, Any]


def measure(subject: Subject, examples: int) -> Found:
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
    found = {}
    for name, parts in answers.items():
        answer = np.concatenate(parts)
        found[name] = {"own_r2": r2(answer, target)}
        if name in donors:
            found[name]["donor_r2"] = r2(answer, np.concatenate(donors[name]))
    return found


def r2(answer: np.ndarray, target: np.ndarray) -> float:
    """1 - squared error over variance, of all sequences together."""
    return float(1 - np.mean(np.square(answer - target)) / np.var(target))


def _means(subject: Subject) -> Layers:
    """The mean operands of each held-out function, with a leading axis of functions."""
    table, draw = subject.table_CxK, np.random.default_rng(0)
    found = []
    points = subject.examples(0, MEAN_EXAMPLES)["features"][..., :-1].shape
    for terms_K in table:
        x_BxNxL = jnp.asarray(draw.random(points), jnp.float32)
        batch = subject.sequences(x_BxNxL, np.broadcast_to(terms_K, (len(x_BxNxL), len(terms_K))))
        found.append(_map(lambda x: x.mean(0), subject.observe(batch)))
    stacked: Layers = jax.tree.map(lambda *x: jnp.stack(x), *found)
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


def _changes(subject: Subject, batch: Batch, means: Layers, start: int) -> Iterator[Change]:
    everywhere, heads, layers = subject.masks(), subject.config.num_heads, subject.config.num_layers
    own = subject.observe(batch)
    yield "none", own, subject.masks(values=True), None
    stranger, cousin = (subject.donors(batch, shared, start) for shared in (0, 1))
    theirs, target = subject.observe(stranger), stranger["target"]
    yield "swap, no term shared", theirs, everywhere, target
    yield "swap, a term shared", subject.observe(cousin), everywhere, cousin["target"]
    for layer in range(layers):
        one = (np.arange(layers) == layer)[:, None]
        yield f"swap in layer {layer}", theirs, subject.masks(one), target
    yield "swap of values", theirs, subject.masks(False, True), target
    yield "swap of both", theirs, subject.masks(True, True), target
    relatives = subject.observe(subject.relatives(batch, start))
    yield "same function, other points", relatives, everywhere, None
    of_task, of_stranger = (_of(subject, means, found) for found in (batch, stranger))
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
            one = np.zeros((layers, heads), bool)
            one[layer, head] = True
            yield f"layer {layer}, head {head} to 0", zero, subject.masks(one), None
            yield f"layer {layer}, head {head} to its mean", grand, subject.masks(one), None
