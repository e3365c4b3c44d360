"""Codes of the HYLA kernels by a function of a tile, and its gradient, traced inside them."""

import jax
import jax.numpy as jnp

from hyla_lm.kernels.pairwise import PAIR_NETWORKS


def codes_of_scores(
    normalization: str, true_heads: int, s_SxT: list[jax.Array], visible_SxT: jax.Array
) -> list[jax.Array]:
    """Each head's code of its scaled scores; heads that pad the others have 0."""
    network = PAIR_NETWORKS[normalization]
    made_HxSxT = network.at(jnp.stack(s_SxT[:true_heads]), visible_SxT, None).made_HxSxT
    padding = [jnp.zeros_like(s) for s in s_SxT[true_heads:]]
    return [made_HxSxT[head] for head in range(true_heads)] + padding


def pull_back(
    normalization: str,
    true_heads: int,
    s_SxT: list[jax.Array],
    visible_SxT: jax.Array,
    da_SxT: list[jax.Array],
) -> list[jax.Array]:
    """The gradient of each head's scaled scores."""
    network = PAIR_NETWORKS[normalization]

    def codes(s_HxSxT: jax.Array) -> jax.Array:
        return network.at(s_HxSxT, visible_SxT, None).made_HxSxT

    _, through = jax.vjp(codes, jnp.stack(s_SxT[:true_heads]))
    (ds_HxSxT,) = through(jnp.stack(da_SxT[:true_heads]))
    padding = [jnp.zeros_like(s) for s in s_SxT[true_heads:]]
    return [ds_HxSxT[head] for head in range(true_heads)] + padding
