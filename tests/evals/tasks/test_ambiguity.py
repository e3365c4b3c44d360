"""Ambiguity by hand-made instances, by brute force, and the published figures."""

from functools import partial
from itertools import permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.evals.tasks import ambiguity
from hyla_lm.evals.tasks.ambiguity import posterior
from hyla_lm.evals.tasks.sraven_rules import completions, row_likelihoods

jit = partial(jax.jit, static_argnums=1)
is_ambiguous = jit(ambiguity.is_ambiguous)
paper_code_count = jit(ambiguity.paper_code_count)
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


def test_the_papers_criterion_wants_every_feature_to_differ() -> None:
    # Plus 4 is minus 4 modulo 8, and plus 2 is not minus 2.
    both = jnp.array([[1, 4, 5], [2, 0, 2], [3, 2, 5]])[:, :, None]
    assert is_ambiguous(both, 8) and paper_code_count(both, 8) == 1
    one_of_two = jnp.array(TWO_ANSWERS)
    assert is_ambiguous(one_of_two, 8) and paper_code_count(one_of_two, 8) == 0


def likelihoods(grid: np.ndarray, num_symbols: int) -> dict[int, dict[int, float]]:
    """For each answer, the likelihood of the completed grid under each rule that gives it."""
    fits, answer = completions(*(jnp.asarray(grid[:, c]) for c in range(3)), num_symbols)
    each = row_likelihoods(len(grid), num_symbols)
    found: dict[int, dict[int, float]] = {}
    for rule in np.flatnonzero(fits):
        found.setdefault(int(answer[rule]), {})[int(rule)] = float(each[rule])
    return found


def test_the_posterior_is_the_sum_over_rules_and_orders() -> None:
    """Two features by brute force: 36 multisets, each assigned to features in both orders."""
    swapped = np.array(TWO_ANSWERS)
    swapped[:, 1] = swapped[:, 1, ::-1]
    for instance in (np.array(TWO_ANSWERS), swapped):
        masses: dict[tuple[int, ...], float] = {}
        for first, second in product(permutations(range(2)), repeat=2):
            grids = [
                np.stack(
                    [instance[:, 0, first[m]], instance[:, 1, second[m]], instance[:, 2, m]], 1
                )
                for m in range(2)
            ]
            one, two = (likelihoods(grid, 8) for grid in grids)
            for panel in product(one, two):
                for (a, p), (b, q) in product(one[panel[0]].items(), two[panel[1]].items()):
                    # A multiset of two rules assigns them one way in half of the orders.
                    weight = 1 if a == b else 1 / 2
                    masses[panel] = masses.get(panel, 0) + weight * p * q
        found = posterior(instance[None], 8)
        truth = tuple(instance[2, 2].tolist())
        assert found.consistent_panels == len(masses)
        # float64 sums of a few terms.
        assert found.largest == pytest.approx(
            max(masses.values()) / sum(masses.values()), rel=1e-12
        )
        assert found.of_truth == pytest.approx(
            masses.get(truth, 0) / sum(masses.values()), rel=1e-12
        )
