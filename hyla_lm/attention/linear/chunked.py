"""Causal linear attention in chunks: exact, and linear in T (no bias, no normalisation).

Earlier chunks reach a query only through the state sum_s k[s] v[s]^T of each head. Under
`segment_ids` the state belongs to the document that the last chunk ended in. Decoding continues
from such a state: constant memory and time per token.
"""

import jax
import jax.numpy as jnp

from hyla_lm.attention.reference import accumulation_dtype
from hyla_lm.attention.request import Request
from hyla_lm.attention.spec import ACTIVATIONS

CHUNK_SIZE = 64


def supports(request: Request) -> bool:
    """Whether a request is linear attention that is causal from the first token on."""
    same_length = request.q_BxTxHxK.shape[1] == request.k_BxSxHxK.shape[1]
    from_the_first = request.causal and same_length and request.q_offset == 0
    return request.spec.is_recurrent and request.is_plain and from_the_first


def attend_chunked(request: Request, chunk_size: int | None = None) -> jax.Array:
    """y[t] = sum_{s<=t, same document} (q[t].k[s] / sqrt(K)) phi(v[s]), shape BxTxHxU in float32.

    The request must be a supported one, with contiguous documents.
    """
    batch, length, heads, head_dim = request.q_BxTxHxK.shape
    value_dim, phi = request.v_BxSxHxU.shape[3], ACTIVATIONS[request.spec.activation]
    dtype = accumulation_dtype(request.q_BxTxHxK)
    chunk = min(chunk_size or CHUNK_SIZE, length)
    segments = request.k_segment_BxS
    if segments is None:
        segments = jnp.zeros((batch, length), jnp.int32)

    def in_chunks(x: jax.Array, fill: str) -> jax.Array:
        widths = [(0, 0), (0, -length % chunk)] + [(0, 0)] * (x.ndim - 2)
        padded = jnp.pad(x, widths, mode=fill)
        return padded.reshape(batch, -1, chunk, *x.shape[2:]).swapaxes(0, 1)

    tokens = (
        in_chunks(request.q_BxTxHxK.astype(dtype) * head_dim**-0.5, "constant"),
        in_chunks(request.k_BxSxHxK.astype(dtype), "constant"),
        in_chunks(phi(request.v_BxSxHxU.astype(dtype)), "constant"),
        in_chunks(segments, "edge"),
    )
    lower_CxC = jnp.tril(jnp.ones((chunk, chunk), bool))

    @jax.checkpoint
    def one_chunk(carry, chunk_tokens):
        state_BxHxKxU, document_B = carry
        q, k, v, segment_BxC = chunk_tokens
        continues_BxC = (segment_BxC == document_B[:, None])[..., None, None]
        visible = lower_CxC & (segment_BxC[:, :, None] == segment_BxC[:, None, :])
        a_BxHxCxC = jnp.where(visible[:, None], jnp.einsum("bthk,bshk->bhts", q, k), 0)
        y_BxCxHxU = jnp.einsum("bhts,bshu->bthu", a_BxHxCxC, v)
        y_BxCxHxU += jnp.einsum("bthk,bhku->bthu", jnp.where(continues_BxC, q, 0), state_BxHxKxU)
        last_B = segment_BxC[:, -1]
        kept = jnp.where((last_B == document_B)[:, None, None, None], state_BxHxKxU, 0)
        in_last_BxC = (segment_BxC == last_B[:, None])[..., None, None]
        state = kept + jnp.einsum("bshk,bshu->bhku", jnp.where(in_last_BxC, k, 0), v)
        return (state, last_B), y_BxCxHxU

    empty = jnp.zeros((batch, heads, head_dim, value_dim), dtype)
    _, y = jax.lax.scan(one_chunk, (empty, segments[:, 0]), tokens)
    return y.swapaxes(0, 1).reshape(batch, -1, heads, value_dim)[:, :length]


def attend_from(
    state_BxHxKxU: jax.Array,
    q_BxTxHxK: jax.Array,
    k_BxTxHxK: jax.Array,
    v_BxTxHxU: jax.Array,
    activation: str,
) -> tuple[jax.Array, jax.Array]:
    """The attention of T new tokens, BxTxHxU in float32, and the state after them.

    The state is sum_s k[s] phi(v[s])^T over the tokens before; it starts as zeros.
    """
    dtype = accumulation_dtype(q_BxTxHxK)
    length, head_dim = q_BxTxHxK.shape[1], q_BxTxHxK.shape[3]
    q, k = q_BxTxHxK.astype(dtype) * head_dim**-0.5, k_BxTxHxK.astype(dtype)
    v = ACTIVATIONS[activation](v_BxTxHxU.astype(dtype))
    visible_TxT = jnp.tril(jnp.ones((length, length), bool))
    a_BxHxTxT = jnp.where(visible_TxT, jnp.einsum("bthk,bshk->bhts", q, k), 0)
    y_BxTxHxU = jnp.einsum("bhts,bshu->bthu", a_BxHxTxT, v)
    y_BxTxHxU += jnp.einsum("bthk,bhku->bthu", q, state_BxHxKxU)
    return y_BxTxHxU, state_BxHxKxU + jnp.einsum("bshk,bshu->bhku", k, v)
