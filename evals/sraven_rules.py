"""The eight rules of SRAVEN: what third symbol two symbols of a row ask for (paper, Appendix B.3).

Symbols are 0 to K - 1 and arithmetic is modulo K. A rule acts within rows of three symbols; rows of
a grid share their rule, and under distribute three also their set of three different symbols.

Dimensions: B batch, R rows of the grid, M features, K symbols, P the eight rules.
"""

from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def draw_grid(key: jax.Array, rule: jax.Array, num_rows: int, num_symbols: int) -> jax.Array:
    """A grid, Rx3, of a rule: each row draws its own start, operands or order."""
    start_key, symbols_key, order_key = jax.random.split(key, 3)
    a_R, b_R = jax.random.randint(start_key, (2, num_rows), 0, num_symbols)
    symbols = jax.random.permutation(symbols_key, num_symbols)[:COLUMNS]
    orders = jax.random.split(order_key, num_rows)
    rows_PxRx3 = jnp.stack(
        [jnp.stack([a_R, a_R + step, a_R + 2 * step], axis=-1) for step in STEPS]
        + [jnp.stack([a_R, b_R, a_R + b_R], axis=-1), jnp.stack([a_R, b_R, a_R - b_R], axis=-1)]
        + [jax.vmap(lambda key: jax.random.permutation(key, symbols))(orders)]
    )
    return rows_PxRx3[rule] % num_symbols


def row_likelihoods(num_rows: int, num_symbols: int) -> np.ndarray:
    """The probability, P, of any one grid that a rule can make, in the order of RULES."""
    start, operands = num_symbols ** -float(num_rows), num_symbols ** -float(2 * num_rows)
    orders = ORDERS_OF_THREE ** -float(num_rows) / comb(num_symbols, COLUMNS)
    return np.array([start] * len(STEPS) + [operands] * 2 + [orders])


def completions(
    a_R: jax.Array, b_R: jax.Array, c_R: jax.Array, num_symbols: int, loose: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Which rules fit a grid without its last symbol, and that symbol by each: both (P, ...).

    The columns a, b and c have rows first; the last of c is not looked at. `loose` takes three
    symbols that are not all different for distribute three, as the paper's code did; then none is
    left for the last place, and the answer is -1.
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
    fits = same_symbols & known[0] & known[1] & (a != b)
    left = jnp.where(are_different, one + two + three - a - b, -1)
    return fits & (are_different | loose), left
