"""The language-modelling task: settings, next-token objective, data and closing lines."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from hyla_lm.attention.chips import platform
from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.input.row_stream import evaluation_rows
from hyla_lm.input.rows import RowSet
from hyla_lm.input.source import (
    Batches,
    DataSource,
    LanguageData,
    Reading,
    open_named_rows,
)
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import LONGEST_ROW, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.layers import Head
from hyla_lm.model.loss import CrossEntropy, cross_entropy, cross_entropy_by_token
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.tasks.protocol import Batch, HostBatch, LossFn
from hyla_lm.tasks.sampling import Sampler, Sampling

SAMPLE_TOKENS = 80


@configurable
@dataclass(frozen=True)
class LanguageModel:
    """Next-token prediction over packed rows; no token sees another document."""

    ranked_by: ClassVar[str] = "validation/bits_per_byte"

    data: DataSource | None = setting(None, "where rows come from, such as @Rows()")
    sequence_length: int = setting(512, "T, tokens per row", minimum=1, maximum=LONGEST_ROW)
    vocab_size: int | None = setting(
        None, "pieces the tokenizer must have; None takes what it has", minimum=1
    )
    validation_rows: int | None = setting(
        None,
        "rows of a periodic evaluation; None takes all, as the last evaluation does",
        minimum=1,
    )
    validation_sets: tuple[str, ...] = setting(
        (),
        "more rows to evaluate on, each a name and a folder, such as ('books=rows/books',)",
        path=True,
    )
    document_losses: bool = setting(
        True, "keep the loss of each validation document at each evaluation, for hyla-lm compare"
    )
    closing_prompt: str | None = setting(
        "Return the", "prompt of samples, while a run trains and at its end; None samples none"
    )
    samples: int = setting(
        0,
        "texts sampled at each evaluation, shown in TensorBoard; 0 samples none",
        minimum=0,
        maximum=1000,
    )
    z_loss: float = setting(0.0, "weight of log(Z)^2 in the objective", minimum=0, maximum=1000)
    logit_chunk: int = setting(128, "positions whose logits are in memory at a time", minimum=1)
    read_threads: int = setting(
        1, "threads that read; 1 for a disk, 64 for a bucket", minimum=1, maximum=1000
    )
    read_ahead: int = setting(8, "batches read ahead of training", minimum=1, maximum=1000)

    def check(self) -> None:
        if self.samples and self.closing_prompt is None:
            raise UserError(
                "LanguageModel.samples needs a prompt: "
                "set LanguageModel.closing_prompt, or samples to 0"
            )

    def planned_objective(self) -> "NextToken":
        """The objective without data; raises UserError without a vocabulary.

        The tokenizer is read if it is on this machine. Otherwise BOS is taken to be 1, which
        changes one constant of the program.
        """
        path = getattr(self.data, "tokenizer", "")
        if path and (self.vocab_size is None or Path(path).is_file()):
            return self.objective_with(Tokenizer(path))
        if self.vocab_size is None:
            raise UserError(
                "LanguageModel.vocab_size is not set and no tokenizer is at hand: set it, "
                "for example --gin.LanguageModel.vocab_size=32000."
            )
        return self._objective(self.vocab_size, bos=1)

    def objective_with(self, tokenizer: Tokenizer) -> "NextToken":
        """The objective without data; raises UserError for another vocabulary than is set."""
        if self.vocab_size not in (None, tokenizer.vocab_size):
            raise UserError(
                f"LanguageModel.vocab_size = {self.vocab_size} but {tokenizer.path} has "
                f"{tokenizer.vocab_size} pieces: correct the binding or the tokenizer."
            )
        return self._objective(tokenizer.vocab_size, tokenizer.bos)

    def _objective(self, vocab_size: int, bos: int) -> "NextToken":
        return NextToken(vocab_size, bos, self.sequence_length, self.logit_chunk, self.z_loss)

    def prepare_task(self, batch_size: int) -> "LanguageModelTask":
        if self.data is None:
            raise UserError(
                "LanguageModel.data is not set: add a gin file that says where text is, such as "
                "gin/c4_rows.gin, or bind it to a source such as @Rows()."
            )
        reading = Reading(self.read_threads, self.read_ahead)
        data = self.data.open(self.sequence_length, batch_size, reading)
        sets = open_named_rows(self.validation_sets, data, self.sequence_length)
        objective = self.objective_with(data.tokenizer)
        sets = {**data.sets, **sets}
        return LanguageModelTask(**vars(objective), config=self, data=data, sets=sets)


@dataclass(frozen=True)
class NextToken:
    """Next-token cross-entropy over packed rows; see hyla_lm.tasks.protocol.Objective."""

    vocab_size: int
    bos: int
    sequence_length: int
    logit_chunk: int
    z_loss: float

    @property
    def io(self) -> Tokens:
        return Tokens(self.vocab_size)

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        per_row = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
        tokens = jax.ShapeDtypeStruct((batch_size, self.sequence_length + 1), jnp.int32)
        return {"tokens": tokens, "text_bytes": per_row, "row": per_row}

    def inputs(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        input_BxT, _, _, segment_BxT = unpack(batch["tokens"], self.bos)
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
        input_BxT, target_BxT, weight_BxT, segment_BxT = unpack(batch["tokens"], self.bos)
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


@dataclass(frozen=True)
class LanguageModelTask(NextToken):
    """The objective with its data; see hyla_lm.tasks.protocol.Task.

    `sets` are named validation sets besides that of the data. They change nothing that is
    trained, so they are not of the identity.
    """

    config: LanguageModel
    data: LanguageData
    sets: dict[str, RowSet]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.data.tokenizer

    def identity(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizer.sha256,
            "train rows": self.data.train.identity(),
            "validation rows": self.data.validation.identity,
        }

    def named_sets(self) -> dict[str, str]:
        return {name: rows.identity for name, rows in self.sets.items()}

    def summary(self) -> dict[str, str]:
        named = {f"validation {name}": _described(rows) for name, rows in self.sets.items()}
        return {
            "data": self.data.train.summary(),
            "validation": _described(self.data.validation),
            **named,
            "tokenizer": f"{self.tokenizer.path} ({self.tokenizer.vocab_size:,} pieces)",
        }

    def train_stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> Batches:
        return self.data.train.stream(shard, states)

    def evaluation_sets(self, shard: BatchShard, final: bool) -> Mapping[str, Iterator[HostBatch]]:
        limit = None if final else self.config.validation_rows
        return {
            name: evaluation_rows(rows, shard, self.tokenizer.bos, limit)
            for name, rows in {"": self.data.validation, **self.sets}.items()
        }

    def logged_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        return dict(means)

    def describe(self, values: Mapping[str, float]) -> str:
        losses = {name: values.get(f"{name}_loss_nats") for name in self.sets}
        named = [f"{name} {loss:.4f}" for name, loss in losses.items() if loss is not None]
        return ", ".join([f"loss {values['loss_nats']:.4f}", *named])

    def closing_lines(
        self, model: Decoder, params: Any, validation: Mapping[str, float]
    ) -> list[str]:
        """Each validation loss, and a sampled continuation."""
        prefixes = {"validation": "", **{f"validation {name}": f"{name}_" for name in self.sets}}
        lines = [
            f"{title} loss {validation[f'{prefix}loss_nats']:.4f} nats per token, "
            f"{validation[f'{prefix}bits_per_byte']:.3f} bits per byte"
            for title, prefix in prefixes.items()
        ]
        if self.config.closing_prompt is None:
            return lines
        return [*lines, "sample:", f"  {self.samples(model, params)[0]}"]

    def samples(self, model: Decoder, params: Any) -> list[str]:
        """The closing prompt and its continuations within a row, with the same seeds at every call.

        They are LanguageModel.samples, but at least one.
        """
        prompt = self.config.closing_prompt
        assert prompt is not None
        room = self.sequence_length - len(self.tokenizer.encode(prompt)) - 1
        sampling = Sampling(max(1, min(SAMPLE_TOKENS, room)), temperature=0.8, top_p=0.95)
        sampler = Sampler(model, params, self.tokenizer, self.sequence_length)
        samples = sampler.sample([prompt], sampling, max(1, self.config.samples))
        return [sample.prompt + sample.text for sample in samples]


def _described(rows: RowSet) -> str:
    return f"{len(rows.rows):,} rows, {rows.text_bytes / 1e6:.2f} MB"
