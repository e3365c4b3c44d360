"""Ambiguity of instances made by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.evals.tasks import ambiguity
from hyla_lm.evals.tasks.ambiguity import posterior

jit = partial(jax.jit, static_argnums=1)
is_ambiguous = jit(ambiguity.is_ambiguous)
# Two features (rows by columns); (2, 5) and (2, 7) both fit modulo 8.
TWO_ANSWERS = [[(6, 7), (0, 0), (1, 6)], [(0, 4), (5, 4), (6, 4)], [(6, 0), (1, 1), (2, 7)]]


def test_an_instance_with_two_answers() -> None:
    instance = jnp.array(TWO_ANSWERS)
    assert is_ambiguous(instance, 8)
    for panel, is_consistent in (((2, 5), True), ((2, 7), True), ((2, 6), False)):
        shown = instance.at[2, 2].set(jnp.array(panel))
        assert bool((posterior(np.asarray(shown)[None], 8).of_truth > 0)[0]) == is_consistent


def test_one_answer_is_not_ambiguous() -> None:
    instance = jnp.array([[[1], [2], [3]], [[4], [5], [6]], [[0], [1], [2]]])
    assert not is_ambiguous(instance, 8)
    found = posterior(np.asarray(instance)[None], 8)
    assert found == (1, 1, 1)
