"""Codes of the HYLA kernels by a function of a tile, and its gradient, traced inside them."""

from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.attention.pairwise import PAIR_NETWORKS, Codes

PerHead = list[jax.Array]


def weights_of(weight_refs: list[Any]) -> jax.Array | None:
    """The weights of a block of queries, N x 1 x 128."""
    if not weight_refs:
        return None
    (ref,) = weight_refs
    return jnp.stack([ref[0, row : row + 1] for row in range(ref.shape[1])])


def codes_of_scores(
    normalization: str,
    true_heads: int,
    s_SxT: PerHead,
    visible_SxT: jax.Array,
    weights_Nx1xT: jax.Array | None,
) -> tuple[PerHead, PerHead]:
    """Each head's codes, of the scaled scores, to make a value network and to read it out.

    Heads that pad the others have 0.
    """
    made, read = _codes(normalization, jnp.stack(s_SxT[:true_heads]), visible_SxT, weights_Nx1xT)
    heads = len(s_SxT)
    return _per_head(made, heads), _per_head(read, heads)


def pull_back(
    normalization: str,
    true_heads: int,
    s_SxT: PerHead,
    visible_SxT: jax.Array,
    weights_Nx1xT: jax.Array | None,
    d_codes: tuple[PerHead, PerHead],
) -> tuple[PerHead, jax.Array | None]:
    """The gradient of each head's scaled scores, and that of the weights."""

    def codes(s_HxSxT: jax.Array, weights_Nx1xT: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        return _codes(normalization, s_HxSxT, visible_SxT, weights_Nx1xT)

    _, through = jax.vjp(codes, jnp.stack(s_SxT[:true_heads]), weights_Nx1xT)
    d_made, d_read = (jnp.stack(d[:true_heads]) for d in d_codes)
    ds_HxSxT, dw_Nx1xT = through((d_made, d_read))
    return _per_head(ds_HxSxT, len(s_SxT)), dw_Nx1xT


def _codes(
    normalization: str, s_HxSxT: jax.Array, visible_SxT: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    codes: Codes = PAIR_NETWORKS[normalization].at(s_HxSxT, visible_SxT, weights)
    made, read = codes
    return made, made if read is None else read


def _per_head(x_HxSxT: jax.Array, heads: int) -> PerHead:
    zeros = [jnp.zeros_like(x_HxSxT[0])] * (heads - len(x_HxSxT))
    return [*x_HxSxT, *zeros]
