"""The objective of a language model: next-token cross-entropy over packed rows of text."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from hyla_lm.attention.platform import platform
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.head import Head
from hyla_lm.model.loss import CrossEntropy, cross_entropy, cross_entropy_by_token
from hyla_lm.tasks.protocol import Batch, LossFn


class Vocabulary(Protocol):
    """The part of a tokenizer that the objective needs."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos(self) -> int: ...


@dataclass(frozen=True)
class NextToken:
    """See hyla_lm.tasks.protocol.Objective; no token sees another document."""

    vocabulary: Vocabulary
    sequence_length: int
    logit_chunk: int
    z_loss: float

    @property
    def io(self) -> Tokens:
        return Tokens(self.vocabulary.vocab_size)

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        per_row = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
        tokens = jax.ShapeDtypeStruct((batch_size, self.sequence_length + 1), jnp.int32)
        return {"tokens": tokens, "text_bytes": per_row, "row": per_row}

    def inputs(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """See hyla_lm.tasks.protocol.Inspectable."""
        input_BxT, _, _, segment_BxT = unpack(batch["tokens"], self.vocabulary.bos)
        return input_BxT, segment_BxT

    def loss(self, model: Decoder) -> LossFn:
        def loss_fn(
            params: Any, batch: Batch, dropout_key: jax.Array | None
        ) -> tuple[Pair, Metrics]:
            head, scored = self._to_score(model, params, batch, dropout_key)
            with jax.named_scope("loss"):
                sums = cross_entropy(head, *scored, self.logit_chunk, self.z_loss)
            return _metrics(sums, scored[-1], batch)

        return loss_fn

    def loss_by_token(self, model: Decoder) -> Callable[[Any, Batch], tuple[Metrics, jax.Array]]:
        """The metrics of `loss` without dropout, and the nats of each target (BxT)."""

        def loss_fn(params: Any, batch: Batch) -> tuple[Metrics, jax.Array]:
            head, scored = self._to_score(model, params, batch, None)
            chunk, z_loss = self.logit_chunk, self.z_loss
            with jax.named_scope("loss"):
                sums, nats_BxT = cross_entropy_by_token(head, *scored, chunk, z_loss)
            return _metrics(sums, scored[-1], batch)[1], nats_BxT

        return loss_fn

    def _to_score(
        self, model: Decoder, params: Any, batch: Batch, dropout_key: jax.Array | None
    ) -> tuple[Head, tuple[jax.Array, jax.Array, jax.Array]]:
        """The head, and what it scores: hidden states, targets and weights."""
        input_BxT, target_BxT, weight_BxT, segment_BxT = unpack(
            batch["tokens"], self.vocabulary.bos
        )
        hidden_BxTxD: Any = model.apply(
            {"params": params},
            input_BxT,
            segment_BxT,
            dropout=dropout_key is not None,
            rngs=None if dropout_key is None else {"dropout": dropout_key},
            method="hidden",
        )
        head: Any = model.apply({"params": params}, method="output_head")
        return head, (hidden_BxTxD, target_BxT, weight_BxT)


def _metrics(sums: CrossEntropy, weight_BxT: jax.Array, batch: Batch) -> tuple[Pair, Metrics]:
    """What a loss returns, of the sums over a batch."""
    tokens = jnp.sum(weight_BxT)
    text_bytes = jnp.sum(batch["text_bytes"]).astype(jnp.float32)
    metrics = {
        "loss_nats": (sums.nats, tokens),
        "bits_per_byte": (sums.nats / math.log(2), text_bytes),
        "accuracy": (sums.correct, tokens),
    }
    return (sums.objective, tokens), metrics


def unpack(tokens_BxT1: jax.Array, bos: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Inputs, targets, weights and segment ids (all BxT) of rows of T+1 tokens.

    A BOS starts a document; as a target it has weight 0, since it does not depend on the last one.
    """
    input_BxT, target_BxT = tokens_BxT1[:, :-1], tokens_BxT1[:, 1:]
    weight_BxT = (target_BxT != bos).astype(jnp.float32)
    return input_BxT, target_BxT, weight_BxT, _segments(input_BxT == bos)


def _segments(starts_BxT: jax.Array) -> jax.Array:
    """The ids of documents, which rise along a row.

    Sorting leaves them as they are. XLA for CPU fuses no sort, but would fuse the sum into each
    attention mask and add the ids up again for each pair: a twentieth of a train step.
    """
    segment_BxT = jnp.cumsum(starts_BxT, axis=1)
    return jnp.sort(segment_BxT, axis=1) if platform() == "cpu" else segment_BxT
