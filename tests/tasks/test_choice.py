"""The choice of a token: which ones may be chosen, how often, and settings that do not fit."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.tasks.decoding import Sampling, choose

VOCABULARY, DRAWS = 12, 4000
# Shuffled, so that no order of ids is the order of their probabilities.
LOGITS = np.random.default_rng(0).permutation(np.linspace(0, 4, VOCABULARY)).astype(np.float32)


def drawn(sampling: Sampling) -> Counter[int]:
    keys = jax.random.split(jax.random.key(0), DRAWS)
    draw = jax.jit(jax.vmap(partial(choose, jnp.asarray(LOGITS), sampling=sampling)))
    return Counter(np.asarray(draw(keys)).tolist())


def probabilities(temperature: float) -> np.ndarray:
    weights = np.exp(LOGITS.astype(np.float64) / temperature)
    return weights / weights.sum()


def nucleus(temperature: float, top_p: float) -> set[int]:
    """The fewest likeliest tokens whose probabilities reach top_p."""
    order = np.argsort(-LOGITS)
    reached = np.cumsum(probabilities(temperature)[order])
    return set(order[: int(np.argmax(reached >= top_p)) + 1].tolist())


@pytest.mark.parametrize("top_k", [1, 5, 2**40])
def test_only_the_top_k_are_chosen_and_each_of_them_is(top_k: int) -> None:
    likeliest = np.argsort(-LOGITS)[:top_k].tolist()
    # At temperature 2 the rarest has probability 0.02: it is missing in 4000 with odds e^-80.
    assert set(drawn(Sampling(temperature=2.0, top_k=top_k))) == set(likeliest)


@pytest.mark.parametrize(("top_p", "temperature"), [(0.1, 1.0), (0.5, 2.0), (0.9, 2.0)])
def test_only_the_nucleus_is_chosen_and_all_of_it_is(top_p: float, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p)
    assert set(drawn(sampling)) == nucleus(temperature, top_p)


@pytest.mark.parametrize(("temperature", "top_k"), [(0.5, 0), (3.0, VOCABULARY)])
def test_frequencies_are_the_softmax_at_the_temperature(temperature: float, top_k: int) -> None:
    counts = drawn(Sampling(temperature=temperature, top_k=top_k))
    expected = probabilities(temperature)
    frequencies = np.array([counts[token] for token in range(VOCABULARY)]) / DRAWS
    # Five standard deviations of a frequency out of 4000 draws.
    deviation = np.sqrt(expected * (1 - expected) / DRAWS)
    assert (np.abs(frequencies - expected) < 5 * deviation + 1 / DRAWS).all()
