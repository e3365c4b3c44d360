"""The eight rules of SRAVEN: the third symbol of a row after two (paper, Appendix B.3).

Symbols are 0 to K - 1 and arithmetic is modulo K. A rule acts within rows of three symbols; rows of
a grid share their rule, and under distribute three also their set of three different symbols.

Dimensions: B batch, R rows of the grid, M features, K symbols, P the eight rules.
"""

from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.evals.tasks.draws import below, orders, random_bits

COLUMNS = 3
STEPS = (0, 1, 2, -1, -2)
RULES = (
    "constant",
    "progression +1",
    "progression +2",
    "progression -1",
    "progression -2",
    "addition",
    "subtraction",
    "distribute three",
)
ORDERS_OF_THREE = 6


def draw_grids(key: jax.Array, rule_M: jax.Array, num_rows: int, num_symbols: int) -> jax.Array:
    """A grid of each rule, MxRx3: each row draws its own start, operands or order."""
    (num_features,) = rule_M.shape
    operand_bits, symbol_bits, order_bits = random_bits(
        key,
        (2, num_features, num_rows),
        (num_features, num_symbols),
        (num_features, num_rows, COLUMNS),
    )
    a_MxR, b_MxR = below(operand_bits, num_symbols)
    symbols_Mx3 = orders(symbol_bits)[:, :COLUMNS]
    three_MxRx3 = jnp.take_along_axis(symbols_Mx3[:, None], orders(order_bits), axis=2)
    rows_PxMxRx3 = jnp.stack(
        [jnp.stack([a_MxR, a_MxR + step, a_MxR + 2 * step], axis=-1) for step in STEPS]
        + [jnp.stack([a_MxR, b_MxR, a_MxR + b_MxR], axis=-1)]
        + [jnp.stack([a_MxR, b_MxR, a_MxR - b_MxR], axis=-1)]
        + [three_MxRx3]
    )
    return rows_PxMxRx3[rule_M, jnp.arange(num_features)] % num_symbols


def row_likelihoods(num_rows: int, num_symbols: int) -> np.ndarray:
    """The probability of each grid that a rule can make, for each of RULES: shape P."""
    start, operands = num_symbols ** -float(num_rows), num_symbols ** -float(2 * num_rows)
    orders = ORDERS_OF_THREE ** -float(num_rows) / comb(num_symbols, COLUMNS)
    return np.array([start] * len(STEPS) + [operands] * 2 + [orders])


def completions(
    a_R: jax.Array, b_R: jax.Array, c_R: jax.Array, num_symbols: int, loose: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Whether each rule fits a grid without its last symbol, and its last symbol: both (P, ...).

    The columns a, b and c have rows first; the last symbol of c is not used. If `loose`, the
    symbols of distribute three may be equal, and its answer is the smallest symbol left, or -1
    without one; the paper's code counts so.
    """
    steps = jnp.array(STEPS).reshape(-1, *[1] * a_R.ndim)
    steps_fit = (b_R - a_R - steps) % num_symbols == 0
    thirds = jnp.concatenate([b_R + steps, (a_R + b_R)[None], (a_R - b_R)[None]]) % num_symbols
    starts_fit = jnp.concatenate([steps_fit, jnp.ones((2, *a_R.shape), bool)])
    fits = starts_fit.all(1) & (thirds[:, :-1] == c_R[:-1]).all(1)
    three_fit, three = _distribute_three(a_R, b_R, c_R, loose)
    return jnp.concatenate([fits, three_fit[None]]), jnp.concatenate([thirds[:, -1], three[None]])


def _distribute_three(a_R: Any, b_R: Any, c_R: Any, loose: bool) -> tuple[jax.Array, jax.Array]:
    full = jnp.sort(jnp.stack([a_R[:-1], b_R[:-1], c_R[:-1]]), axis=0)
    one, two, three = full[:, 0]
    are_different = (one != two) & (two != three)
    same_symbols = (full == full[:, :1]).all((0, 1))
    a, b = a_R[-1], b_R[-1]
    known = [(x == one) | (x == two) | (x == three) for x in (a, b)]
    fits = same_symbols & known[0] & known[1] & (loose | (are_different & (a != b)))
    is_left = [(x != a) & (x != b) for x in (one, two, three)]
    return fits, jnp.select(is_left, [one, two, three], -1)
