"""The language-modelling task: settings, data, metrics and closing lines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from hyla_lm.config import UserError, configurable, naming_settings, setting
from hyla_lm.gin_text import paths
from hyla_lm.input.row_stream import evaluation_rows
from hyla_lm.input.source import Batches, DataSource, LanguageData, Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.tasks.next_token import NextToken, Vocabulary
from hyla_lm.tasks.protocol import HostBatch, LossFn
from hyla_lm.tasks.sampling import Sampling, generate


@configurable
@dataclass(frozen=True)
class LanguageModel:
    """Next-token prediction over packed rows; no token sees another document."""

    data: DataSource | None = setting(None, "where rows come from, such as @Rows()")
    sequence_length: int = setting(512, "T, tokens a row", minimum=1)
    vocab_size: int | None = setting(None, "pieces the tokenizer must have; None takes what it has")
    validation_rows: int | None = setting(
        None,
        "rows of a periodic evaluation; None takes all, as the last evaluation does",
        minimum=1,
    )
    document_losses: bool = setting(
        True, "keep the loss of each validation document at each evaluation, for hyla-lm compare"
    )
    closing_prompt: str = setting("Return the", "prompt of the sample at the end of a run")
    z_loss: float = setting(0.0, "weight of log(Z)^2 in the objective", minimum=0)
    logit_chunk: int = setting(128, "positions whose logits are in memory at a time", minimum=1)
    read_threads: int = setting(1, "threads that read; 1 for a disk, 64 for a bucket", minimum=1)
    read_ahead: int = setting(8, "batches read ahead of training", minimum=1)
    read_workers: int = setting(0, "processes that read rows; 0 reads in this one", minimum=0)
    read_attempts: int = setting(5, "tries of a read before its error stops the run", minimum=1)

    def planned_objective(self) -> NextToken:
        """The objective without data; raises UserError without a vocabulary.

        The tokenizer is read if it is on this machine. Otherwise BOS is taken to be 1, which
        changes one constant of the program.
        """
        path = getattr(self.data, "tokenizer", "")
        if path and (self.vocab_size is None or Path(path).is_file()):
            return self.objective(self._checked(Tokenizer(path)))
        if self.vocab_size is None:
            raise UserError(
                "LanguageModel.vocab_size is not set and no tokenizer is at hand: set it, "
                "for example --gin.LanguageModel.vocab_size=32000."
            )
        return self.objective(PlannedVocabulary(self.vocab_size))

    def objective(self, vocabulary: Vocabulary) -> NextToken:
        return NextToken(vocabulary, self.sequence_length, self.logit_chunk, self.z_loss)

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
                "LanguageModel.data is not set: add a gin file that says where text is, such as "
                f"{' or '.join(paths.setting('LanguageModel.data', 'TrainConfig.task'))}, or "
                "bind it to a source such as @Rows()."
            )
        reading = Reading(self.read_threads, self.read_ahead, self.read_workers, self.read_attempts)
        with naming_settings(
            sequence_length=f"LanguageModel.sequence_length = {self.sequence_length}",
            batch_size=f"TrainConfig.batch_size = {batch_size}",
        ):
            data = self.data.open(self.sequence_length, batch_size, reading)
        self._checked(data.tokenizer)
        return LanguageModelTask(self, data)


@dataclass(frozen=True)
class PlannedVocabulary:
    """The vocabulary of a tokenizer that is not on this machine."""

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
    def objective(self) -> NextToken:
        return self.config.objective(self.tokenizer)

    @property
    def io(self) -> Tokens:
        return self.objective.io

    @property
    def sequence_length(self) -> int:
        return self.config.sequence_length

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        return self.objective.batch_shapes(batch_size)

    def loss(self, model: Decoder) -> LossFn:
        return self.objective.loss(model)

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

    def train_stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> Batches:
        return self.data.train.stream(shard, states)

    def evaluation_sets(self, shard: BatchShard, final: bool) -> Mapping[str, Iterator[HostBatch]]:
        limit = None if final else self.config.validation_rows
        return {"": evaluation_rows(self.data.validation, shard, self.tokenizer.bos, limit)}

    def logged_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        return dict(means)

    def describe(self, values: Mapping[str, float]) -> str:
        return f"loss {values['loss_nats']:.4f}"

    def closing_lines(
        self, model: Decoder, params: Any, validation: Mapping[str, float]
    ) -> list[str]:
        """The validation loss beside baselines on the same text, and a sampled continuation."""
        ours = {f"this model ({' + '.join(model.config.pattern)})": validation["bits_per_byte"]}
        others = self.data.validation.baselines_bits_per_byte
        table = sorted({**ours, **others}.items(), key=lambda entry: entry[1])
        width = max(len(name) for name, _ in table)
        lines = [f"validation loss {validation['loss_nats']:.4f} nats a token; bits a byte:"]
        lines += [f"  {name:<{width}}  {value:.3f}" for name, value in table]
        prompt = self.config.closing_prompt
        room = self.sequence_length - len(self.tokenizer.encode(prompt)) - 1
        sampling = Sampling(max_tokens=max(1, min(80, room)), temperature=0.8, top_p=0.95)
        text = generate(model, params, self.tokenizer, prompt, sampling, self.sequence_length)
        return [*lines, "sample:", f"  {prompt}{text}"]
