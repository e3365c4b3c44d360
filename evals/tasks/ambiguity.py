"""How many answers an SRAVEN instance has, and how often the best possible solver is right.

Features are permuted in each column, so a solver must try every arrangement, which assigns to each
feature of the last column one of the first and one of the second. An arrangement is consistent if
some rule fits each of its features; each choice of such rules gives a ninth panel. Enumeration is
exact; it costs (M!)^2 arrangements an instance.

Dimensions: N instances, A arrangements, M features, K symbols, P rules, R rows of the grid.
"""

from itertools import permutations
from math import factorial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.evals.tasks.sraven_rules import RULES, completions, row_likelihoods


class Posterior(NamedTuple):
    """The posterior of the ninth panel given the other eight; arrays of length N.

    The best solver picks one of the likeliest panels: the mean of `largest` is its expected
    accuracy.
    """

    consistent_panels: np.ndarray
    largest: np.ndarray
    of_truth: np.ndarray


def is_ambiguous(instance_Rx3xM: jax.Array, num_symbols: int) -> jax.Array:
    """Whether more than one ninth panel is consistent with the other eight."""
    fits, answer = _completions(instance_Rx3xM, num_symbols)
    differs = fits & (answer != instance_Rx3xM[-1, 2])
    fits_AxM, differs_AxM = _arranged(fits.any(0)), _arranged(differs.any(0))
    return (fits_AxM.all(1) & differs_AxM.any(1)).any()


def paper_code_count(instance_Rx3xM: jax.Array, num_symbols: int) -> jax.Array:
    """The paper's count of arrangements in which the answer to every feature can differ.

    Its code calls an instance ambiguous if the count is above 0. Each arrangement counts M! times,
    once for each order of the last column.
    """
    fits, answer = _completions(instance_Rx3xM, num_symbols, loose=True)
    differs = fits & (answer != instance_Rx3xM[-1, 2])
    arrangements = _arranged(differs.any(0)).all(1).sum()
    return arrangements * factorial(instance_Rx3xM.shape[-1])


def posterior(instances_NxRx3xM: np.ndarray, num_symbols: int) -> Posterior:
    """The posterior of the ninth panel under the generator's prior, by exact enumeration.

    The prior is uniform over multisets of rules, columns' permutations and rows. A multiset gives
    an assignment of rules to features with a probability proportional to the product of the
    factorials of its rules' counts.
    """
    _, num_rows, _, num_features = instances_NxRx3xM.shape
    weights = _prior_weights(num_features)
    likelihood_P = row_likelihoods(num_rows, num_symbols)
    places = num_symbols ** np.arange(num_features)

    @jax.jit
    @jax.vmap
    def arranged(instance: jax.Array) -> tuple[jax.Array, jax.Array]:
        fits, answer = _completions(instance, num_symbols)
        return _arranged(jnp.moveaxis(fits, 0, -1)), _arranged(jnp.moveaxis(answer, 0, -1))

    def of_one(
        instance: np.ndarray, fits_AxMxP: np.ndarray, answer_AxMxP: np.ndarray
    ) -> tuple[int, float, float]:
        is_whole_A = np.all(np.any(fits_AxMxP, axis=2), axis=1)
        mass_AxMxP = np.where(fits_AxMxP, likelihood_P, 0)[is_whole_A]
        mass_AxPxx = weights[None] * _outer(mass_AxMxP, np.multiply)
        panel_AxPxx = _outer((answer_AxMxP * places[:, None])[is_whole_A], np.add)
        likely = mass_AxPxx > 0
        panels, index = np.unique(panel_AxPxx[likely], return_inverse=True)
        masses = np.bincount(index, mass_AxPxx[likely])
        of_truth = masses[panels == np.sum(instance[-1, 2] * places)].sum()
        return len(panels), masses.max() / masses.sum(), of_truth / masses.sum()

    tables = [np.asarray(table) for table in arranged(jnp.asarray(instances_NxRx3xM))]
    rows = [of_one(*row) for row in zip(instances_NxRx3xM, *tables, strict=True)]
    return Posterior(*(np.array(column) for column in zip(*rows, strict=True)))


def _completions(
    instance_Rx3xM: jax.Array, num_symbols: int, loose: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Whether each rule fits any three features, and its answer: PxMxMxM each."""
    x = instance_Rx3xM.astype(jnp.int32)
    columns = (x[:, 0, :, None, None], x[:, 1, None, :, None], x[:, 2, None, None, :])
    a, b, c = jnp.broadcast_arrays(*columns)
    return completions(a, b, c, num_symbols, loose)


def _arranged(table_MxMxM: jax.Array) -> jax.Array:
    """The entries of all arrangements, AxM, by feature of the last column; keeps further axes."""
    num_features = table_MxMxM.shape[0]
    order = np.array(list(permutations(range(num_features))))
    picked = table_MxMxM[order[:, None], order[None], np.arange(num_features)]
    return picked.reshape(-1, *picked.shape[2:])


def _outer(table_AxMxP: np.ndarray, operation: np.ufunc) -> np.ndarray:
    """The operation over features, for each choice of a rule for each feature: AxPx...xP."""
    num_features = table_AxMxP.shape[1]
    result = table_AxMxP[:, 0]
    for feature in range(1, num_features):
        shape = (-1, *[1] * feature, len(RULES))
        result = operation(result[..., None], table_AxMxP[:, feature].reshape(shape))
    return result


def _prior_weights(num_features: int) -> np.ndarray:
    """The product of the factorials of each rule's count, for each assignment: Px...xP."""
    assigned = np.indices((len(RULES),) * num_features)
    counts = np.stack([(assigned == rule).sum(0) for rule in range(len(RULES))])
    factorials = np.array([factorial(count) for count in range(num_features + 1)])
    return np.prod(factorials[counts], axis=0)
