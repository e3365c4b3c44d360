"""A preparation of rows: shards one by one, in processes, then the manifest.

A shard is written aside and renamed, then its report is written beside it. A shard with a report is
finished and not made again. The manifest is written when every shard has a report.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any, Protocol

import numpy as np
from etils import epath

from hyla_lm.data.row_writer import encoded, write_shard
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.input.manifest import (
    FORMAT,
    MANIFEST,
    PRODUCER,
    Manifest,
    Shard,
    read_manifest,
    row_dtype,
    write_manifest,
)
from hyla_lm.input.packing import Block
from hyla_lm.input.rows import Counts
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.signals import end_with_parent
from hyla_lm.storage import PathLike, as_path, bucket_of, size_of, storage_errors, write_whole

REQUEST = ".request.json"
ROOM = "make room or give another folder"


class DocumentSource(Protocol):
    """Documents that can be divided into shards, each made without the others."""

    @property
    def name(self) -> str:
        """The name of the source in the manifest."""

    def content(self) -> list[str]:
        """Lines that identify the documents; a preparation only continues with equal ones."""

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`, tokenised."""


@dataclass(frozen=True)
class Preparation:
    """One folder of rows to be made: the same bytes however, and in however many starts."""

    source: DocumentSource
    tokenizer: Tokenizer
    folder: str
    split: str
    sequence_length: int
    shards: int
    seed: int | None = None  # of the order of the documents, for the manifest

    def begin(self) -> None:
        """Begins the folder or continues it; raises UserError for one of another preparation."""
        request = {
            "source": self.source.name,
            "documents": self.source.content(),
            "tokenizer": self.tokenizer.sha256,
            "split": self.split,
            "sequence_length": self.sequence_length,
            "shards": self.shards,
            "producer": PRODUCER,
            "format": FORMAT,
        }
        begin_folder(self.folder, request)

    def missing(self) -> list[int]:
        """The shards still to be made."""
        if self.is_whole():
            return []
        with storage_errors(self.folder, "read", "run the same command again"):
            return [index for index in range(self.shards) if not self._is_finished(index)]

    def make_shard(self, index: int) -> None:
        """Makes a shard and its report."""
        blocks = self.source.blocks(index, self.shards, self.tokenizer)
        path = self._path(self._name(index))
        shard, counts = write_shard(path, blocks, self.tokenizer, self.sequence_length)
        report = {"shard": asdict(shard), "counts": asdict(counts)}
        write_whole(self._report_path(index), json.dumps(report).encode())

    def finish(self) -> Manifest:
        """Writes the manifest from the reports of all shards and removes the reports."""
        folder = as_path(self.folder)
        if not self.is_whole():
            with storage_errors(folder, "written", ROOM):
                write_manifest(folder, self._manifest())
        reports = {self._report_path(index).name for index in range(self.shards)}
        for file in folder.iterdir():
            if file.name in reports or file.suffix == ".partial":
                file.unlink(missing_ok=True)
        return read_manifest(folder)

    def is_whole(self) -> bool:
        """Whether the manifest is there, which is written last."""
        return size_of(self._path(MANIFEST)) is not None

    def _manifest(self) -> Manifest:
        shards, counts = zip(*map(self._report, range(self.shards)), strict=True)
        return Manifest(
            split=self.split,
            source=self.source.name,
            sequence_length=self.sequence_length,
            dtype=row_dtype(self.tokenizer.vocab_size),
            **asdict(sum(counts, Counts())),
            vocab_size=self.tokenizer.vocab_size,
            special_ids=self.tokenizer.special_ids,
            tokenizer_sha256=self.tokenizer.sha256,
            seed=self.seed,
            producer=f"hyla_lm {PRODUCER}",
            shards=shards,
        )

    def _is_finished(self, index: int) -> bool:
        if size_of(self._report_path(index)) is None:
            return False
        shard, _ = self._report(index)
        return size_of(self._path(shard.name)) == shard.size_bytes

    def _report(self, index: int) -> tuple[Shard, Counts]:
        fields = json.loads(self._report_path(index).read_text())
        return Shard(**fields["shard"]), Counts(**fields["counts"])

    def _name(self, index: int) -> str:
        return f"{self.split}-{index:05d}-of-{self.shards:05d}.arrayrecord"

    def _report_path(self, index: int) -> epath.Path:
        return self._path(f".{self._name(index)}.json")

    def _path(self, name: str) -> epath.Path:
        return as_path(self.folder) / name


def prepare(preparation: Preparation, workers: int = 1) -> Manifest:
    """Makes the missing shards of a folder of rows; returns its manifest. Raises UserError."""
    preparation.begin()
    try:
        if missing := preparation.missing():
            _make_shards(preparation, missing, min(workers, len(missing)))
        return preparation.finish()
    except UserError:
        # Of several that make the same folder, the first to finish removes what others need.
        if preparation.is_whole():
            return read_manifest(preparation.folder)
        raise


def _make_shards(preparation: Preparation, missing: Sequence[int], workers: int) -> None:
    of_all = f"{len(missing)} of {preparation.shards} shards"
    print(f"making {of_all} in {preparation.folder}", file=sys.stderr)
    if workers <= 1:
        for index in missing:
            preparation.make_shard(index)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent) as pool:
        made = [pool.submit(preparation.make_shard, index) for index in missing]
        try:
            for future in as_completed(made):
                future.result()
        except BrokenProcessPool as error:
            raise Unavailable(
                "a worker process died, perhaps for lack of memory: lower --workers and run the "
                "same command again; finished shards stay."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def default_workers() -> int:
    """One process for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class TextsInMemory:
    """Texts as a source: a shard holds as many in a row as another."""

    name: str
    texts: Sequence[str]

    def content(self) -> list[str]:
        digest = hashlib.sha256()
        for text in self.texts:
            digest.update(hashlib.sha256(text.encode()).digest())
        return [f"SHA-256 {digest.hexdigest()}"]

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        first, end = (len(self.texts) * border // shards for border in (index, index + 1))
        return encoded(self.texts[first:end], tokenizer)


def write_rows(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    folder: PathLike,
    *,
    split: str,
    source: str,
    sequence_length: int,
    seed: int,
    shards: int = 1,
) -> Manifest:
    """Writes a folder of rows of texts in memory, those of the split `train` in an order of a seed.

    Raises UserError if the folder cannot be written, holds other rows, or gets no text.
    """
    if split == "train":
        texts = [texts[index] for index in np.random.default_rng(seed).permutation(len(texts))]
    documents = TextsInMemory(source, texts)
    request = (documents, tokenizer, str(folder), split, sequence_length, shards, seed)
    return prepare(Preparation(*request))


def begin_folder(folder: str, request: dict[str, Any]) -> None:
    """Writes what is asked for into a new folder; raises UserError for one of another request."""
    place = as_path(folder)
    path = place / REQUEST
    with storage_errors(path, "written", ROOM):
        if not bucket_of(place):
            place.mkdir(parents=True, exist_ok=True)
        if not place.exists() or _is_empty(place):
            write_whole(path, json.dumps(request, indent=1).encode())
    if not path.exists():
        raise UserError(f"{folder} holds other files: give a new folder.")
    begun = json.loads(path.read_text())
    others = [name for name, asked in request.items() if begun.get(name) != asked]
    if others:
        raise UserError(
            f"{folder} was begun with another {' and '.join(others)}: ask for the same or give a "
            "new folder."
        )


def _is_empty(folder: epath.Path) -> bool:
    """Whether nothing was made in a folder; an empty one of a bucket lists itself."""
    itself = folder.name if bucket_of(folder) else ""
    return all(p.suffix == ".partial" or p.name in (itself, REQUEST) for p in folder.iterdir())
