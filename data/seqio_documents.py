"""Documents of SeqIO tasks and mixtures, to prepare as rows or to stream to the trainer.

`register` puts `c4_lm`, C4 from TFDS, into SeqIO's registry, for this package or any other user of
SeqIO. Needs the extra `seqio`.
"""

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from hyla_lm.data.row_writer import DOCUMENTS_PER_BLOCK, batched
from hyla_lm.data.seqio_settings import SeqioTask, SeqioTasks
from hyla_lm.errors import UserError
from hyla_lm.input.packing import Block, block_of
from hyla_lm.input.source import LanguageData, Reading
from hyla_lm.input.stream import Cursor, StreamedText, rows_in_memory
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.package import install
from hyla_lm.parallel.sharding import BatchShard

try:
    import seqio
except ImportError as error:
    raise UserError(f"SeqIO tasks need SeqIO: {install('seqio')} ({error}).") from error

C4 = "c4_lm"
Document = tuple[np.ndarray, int]


@dataclass(frozen=True)
class TaskDocuments:
    """A split of a registered task or mixture: token ids and text bytes of each document.

    A document is the ids of `inputs`, if the task has them, and of `targets`, without their EOS.
    """

    task: str
    split: str
    tokenizer: Tokenizer
    settings: SeqioTasks

    @property
    def name(self) -> str:
        return f"SeqIO {self.task}"

    def check(self) -> None:
        """Raises UserError for a task of another vocabulary or without files."""
        provider = self._provider()
        for name, feature in provider.output_features.items():
            path = getattr(feature.vocabulary, "sentencepiece_model_file", None)
            if path is None or Tokenizer(path).sha256 != self.tokenizer.sha256:
                raise UserError(
                    f"task {self.task} tokenises {name} with another vocabulary than "
                    f"{self.tokenizer.path}: give the tokenizer of the task."
                )
        for task in provider.tasks if isinstance(provider, seqio.Mixture) else [provider]:
            try:
                task.source.list_shards(self.split)
            except (ValueError, KeyError, OSError, AssertionError) as error:
                raise UserError(
                    f"task {task.name} cannot find its split {self.split!r} ({error}): "
                    "say in SeqioTasks where its text is."
                ) from error

    def default_shards(self) -> int:
        provider = self._provider()
        is_task = isinstance(provider, seqio.Task)
        return len(provider.source.list_shards(self.split)) if is_task else 1

    def content(self) -> list[str]:
        return [f"{self.task} {self.split}", repr(self.settings)]

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`."""
        documents = self.documents(seqio.ShardInfo(index, shards), epochs=1)
        yield from map(self.encode, batched(documents, DOCUMENTS_PER_BLOCK))

    def documents(
        self,
        shard: seqio.ShardInfo,
        epochs: int | None,
        shuffle_seed: int | None = None,
        first: int = 0,
    ) -> Iterator[Document]:
        """(ids without EOS, text bytes) of the documents from number `first` on."""
        dataset = self._provider().get_dataset(
            sequence_length=None,
            split=self.split,
            shuffle=shuffle_seed is not None,
            seed=shuffle_seed,
            shard_info=shard,
            num_epochs=epochs,
            trim_output_features=False,
        )
        for example in dataset.skip(first).as_numpy_iterator():
            yield self._document(example)

    def encode(self, documents: list[Document]) -> Block:
        ids, sizes = [ids for ids, _ in documents], [size for _, size in documents]
        return block_of(ids, sizes, self.tokenizer)

    def _document(self, example: dict[str, Any]) -> Document:
        parts, size = [], 0
        for name in ("inputs", "targets"):
            if name in example:
                ids = np.asarray(example[name], np.int32)
                ids = ids[:-1] if len(ids) and ids[-1] == self.tokenizer.eos else ids
                text = example.get(f"{name}_pretokenized")
                text = self.tokenizer.decode(ids.tolist()).encode() if text is None else text
                parts.append(ids)
                size += len(text)
        return np.concatenate(parts), size

    def _provider(self) -> Any:
        """The task or mixture; registers c4_lm first, as the settings say."""
        registered = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
        if self.task == C4 or self.task not in registered:
            register(self.tokenizer.path, self.settings)
        try:
            return seqio.get_mixture_or_task(self.task)
        except ValueError as error:
            raise UserError(
                f"SeqIO has no task or mixture {self.task!r}: correct the name, or name the "
                "module that registers it in SeqioTasks.modules."
            ) from error


def open_task(settings: SeqioTask, sequence_length: int, reading: Reading) -> LanguageData:
    """Opens the data that the settings name; raises UserError."""
    tokenizer = Tokenizer(settings.tokenizer)
    tasks = settings.tasks or SeqioTasks()
    train = TaskDocuments(settings.name, settings.train_split, tokenizer, tasks)
    validation = TaskDocuments(settings.name, settings.validation_split, tokenizer, tasks)
    for documents in (train, validation):
        documents.check()
    text = StreamedText(
        train.name,
        " ".join(train.content()),
        tokenizer,
        sequence_length,
        reading,
        partial(ShuffledTask, train),
        train.encode,
    )
    held_out = validation.documents(seqio.ShardInfo(0, 1), epochs=1)
    chosen = list(itertools.islice(held_out, settings.validation_documents))
    rows = rows_in_memory(validation.encode(chosen), tokenizer, sequence_length)
    return LanguageData(tokenizer, text, rows)


@dataclass(frozen=True)
class ShuffledTask:
    """One process's endless documents of a task; the cursor is the number of earlier ones."""

    task: TaskDocuments
    shard: BatchShard

    def after(self, cursor: Cursor) -> Generator[tuple[Cursor, Document]]:
        first = cursor.get("document", 0)
        documents = self.task.documents(
            seqio.ShardInfo(self.shard.index, self.shard.count), None, self.shard.seed, first
        )
        for number, document in enumerate(documents, first):
            yield {"document": number}, document


def register(vocabulary: str, settings: SeqioTasks) -> None:
    """Registers c4_lm, replacing an earlier call's, and imports the modules of `settings`."""
    seqio.TaskRegistry.remove(C4)
    feature = seqio.Feature(seqio.SentencePieceVocabulary(vocabulary), add_eos=True)
    seqio.TaskRegistry.add(
        C4,
        source=seqio.TfdsDataSource(settings.tfds_name, tfds_data_dir=settings.tfds_folder),
        preprocessors=[
            partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos,
        ],
        output_features={"targets": feature},
        metric_fns=[],
    )
    for module in settings.modules:
        try:
            import_module(module)
        except ImportError as error:
            raise UserError(
                f"SeqioTasks.modules names {module}, which cannot be imported ({error})."
            ) from error
