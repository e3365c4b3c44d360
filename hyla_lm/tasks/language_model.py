"""The language-modelling task: packed rows of text, next-token loss, exact bits per byte."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.config import UserError, configurable, setting
from hyla_lm.input.row_stream import rows_in_order
from hyla_lm.input.source import Batches, DataSource, LanguageData, Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.metrics import Metrics
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.loss import cross_entropy
from hyla_lm.parallel.batch_shard import Share
from hyla_lm.tasks.protocol import OBJECTIVE, Batch, LossFn
from hyla_lm.tasks.sampling import Sampling, generate


@configurable
@dataclass(frozen=True)
class LanguageModel:
    """Next-token prediction over packed rows; no token sees another document."""

    data: DataSource | None = setting(None, "where rows come from, such as @Rows()")
    sequence_length: int = setting(512, "T, tokens a row", minimum=1)
    vocab_size: int | None = setting(None, "pieces the tokenizer must have; None takes what it has")
    validation_rows: int | None = setting(
        None, "rows of the periodic evaluations; None and the last one take all", minimum=1
    )
    z_loss: float = setting(0.0, "weight of log(Z)^2 in the objective", minimum=0)
    logit_chunk: int = setting(128, "positions whose logits exist at a time", minimum=1)
    read_threads: int = setting(1, "threads that read; 1 for a disk, 64 for a bucket", minimum=1)
    read_ahead: int = setting(8, "batches read ahead of training", minimum=1)
    read_workers: int = setting(0, "processes that read rows; 0 reads in this one", minimum=0)
    read_attempts: int = setting(5, "tries of a read before its error stops the run", minimum=1)

    def planned_task(self) -> "LanguageModelTask":
        """The task without its data, only to be compiled; raises UserError without a vocabulary.

        A tokenizer on this machine is read. Without it BOS is taken to be 1, which changes one
        constant of the program.
        """
        path = getattr(self.data, "tokenizer", "")
        vocabulary: Any
        if path and (self.vocab_size is None or Path(path).is_file()):
            vocabulary = self._checked(Tokenizer(path))
        elif self.vocab_size is None:
            raise UserError(
                "LanguageModel.vocab_size is not set and no tokenizer is at hand: set it, "
                "for example --gin.LanguageModel.vocab_size=32000."
            )
        else:
            vocabulary = Vocabulary(self.vocab_size)
        no_data: Any = None
        return LanguageModelTask(self, LanguageData(vocabulary, no_data, no_data))

    def _checked(self, tokenizer: Tokenizer) -> Tokenizer:
        if self.vocab_size not in (None, tokenizer.vocab_size):
            raise UserError(
                f"LanguageModel.vocab_size = {self.vocab_size} but {tokenizer.path} has "
                f"{tokenizer.vocab_size} pieces: correct the binding or the tokenizer."
            )
        return tokenizer

    def prepare_task(self, batch_size: int) -> "LanguageModelTask":
        if self.data is None:
            raise UserError(
                "LanguageModel.data is not set: add --gin_file=gin/c4_rows.gin, "
                "gin/c4_stream.gin or gin/c4_seqio.gin, or bind it to a source such as @Rows()."
            )
        reading = Reading(self.read_threads, self.read_ahead, self.read_workers, self.read_attempts)
        data = self.data.open(self.sequence_length, batch_size, reading)
        self._checked(data.tokenizer)
        return LanguageModelTask(self, data)


@dataclass(frozen=True)
class Vocabulary:
    """What the train step needs of a tokenizer that is not here."""

    vocab_size: int
    bos: int = 1


@dataclass(frozen=True)
class LanguageModelTask:
    """The prepared task; see hyla_lm.tasks.protocol.Task."""

    config: LanguageModel
    data: LanguageData

    @property
    def tokenizer(self) -> Tokenizer:
        return self.data.tokenizer

    @cached_property
    def io(self) -> Tokens:
        return Tokens(self.tokenizer.vocab_size)

    @property
    def sequence_length(self) -> int:
        return self.config.sequence_length

    def identity(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizer.sha256,
            "train rows": self.data.train.identity(),
            "validation rows": self.data.validation.identity,
        }

    def summary(self) -> dict[str, str]:
        validation = self.data.validation
        return {
            "data": self.data.train.summary(),
            "validation": f"{len(validation.rows):,} rows, {validation.text_bytes / 1e6:.2f} MB",
            "tokenizer": f"{self.tokenizer.path} ({self.tokenizer.vocab_size:,} pieces)",
        }

    def train_stream(
        self, batch_size: int, seed: int, share: Share, states: list[dict[str, Any]] | None
    ) -> Batches:
        return self.data.train.stream(batch_size, seed, share, states)

    def evaluation_sets(
        self, batch_size: int, share: Share, final: bool
    ) -> Mapping[str, Iterator[dict[str, np.ndarray]]]:
        limit = None if final else self.config.validation_rows
        bos = self.tokenizer.bos
        return {"": rows_in_order(self.data.validation, batch_size, bos, share, limit)}

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        return dict(means)

    def describe(self, values: Mapping[str, float]) -> str:
        return f"loss {values['loss_nats']:.4f}"

    def tokens_per_batch(self, batch_size: int) -> int:
        return batch_size * self.sequence_length

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        per_row = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
        tokens = jax.ShapeDtypeStruct((batch_size, self.sequence_length + 1), jnp.int32)
        return {"tokens": tokens, "text_bytes": per_row, "row": per_row}

    def loss(self, model: Decoder) -> LossFn:
        config, bos = self.config, self.tokenizer.bos

        def logits_of(head_params: Any, hidden: jax.Array) -> Any:
            return model.apply({"params": head_params}, hidden, method="logits")

        def mean_logit_of(head_params: Any, hidden: jax.Array) -> Any:
            return model.apply({"params": head_params}, hidden, method="mean_logit")

        def loss_fn(params: Any, batch: Batch, dropout_key: jax.Array | None) -> Metrics:
            input_BxT, target_BxT, weight_BxT, segment_BxT = unpack(batch["tokens"], bos)
            hidden_BxTxD: Any = model.apply(
                {"params": params},
                input_BxT,
                segment_BxT,
                dropout=dropout_key is not None,
                rngs=None if dropout_key is None else {"dropout": dropout_key},
                method="hidden",
            )
            sums = cross_entropy(
                logits_of,
                mean_logit_of,
                head_params(params),
                hidden_BxTxD,
                target_BxT,
                weight_BxT,
                config.logit_chunk,
                config.z_loss,
            )
            tokens = jnp.sum(weight_BxT)
            text_bytes = jnp.sum(batch["text_bytes"]).astype(jnp.float32)
            return {
                OBJECTIVE: (sums.objective, tokens),
                "loss_nats": (sums.nats, tokens),
                "bits_per_byte": (sums.nats / math.log(2), text_bytes),
                "accuracy": (sums.correct, tokens),
            }

        return loss_fn

    def closing_lines(
        self, model: Decoder, params: Any, validation: Mapping[str, float]
    ) -> list[str]:
        """Validation loss beside other models of the same text, and a sampled continuation."""
        ours = {f"this model ({' + '.join(model.config.pattern)})": validation["bits_per_byte"]}
        others = self.data.validation.baselines_bits_per_byte
        table = sorted({**ours, **others}.items(), key=lambda entry: entry[1])
        width = max(len(name) for name, _ in table)
        lines = [f"validation loss {validation['loss_nats']:.4f} nats a token; bits a byte:"]
        lines += [f"  {name:<{width}}  {value:.3f}" for name, value in table]
        prompt = "Return the"
        room = self.sequence_length - len(self.tokenizer.encode(prompt)) - 1
        sampling = Sampling(max_tokens=max(1, min(80, room)), temperature=0.8, top_p=0.95)
        text = generate(model, params, self.tokenizer, prompt, sampling, self.sequence_length)
        return [*lines, "sample:", f"  {prompt}{text}"]


def unpack(tokens_BxT1: jax.Array, bos: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Inputs, targets, weights and segment ids (all BxT) of rows of T+1 tokens.

    A BOS starts a document; as a target it weighs nothing, for it does not follow from the last.
    """
    input_BxT, target_BxT = tokens_BxT1[:, :-1], tokens_BxT1[:, 1:]
    weight_BxT = (target_BxT != bos).astype(jnp.float32)
    return input_BxT, target_BxT, weight_BxT, jnp.cumsum(input_BxT == bos, axis=1)


def head_params(params: Any) -> Any:
    """The parameters that make logits of hidden states."""
    return {"head": params["head"]} if "head" in params else {"embed": params["embed"]}
