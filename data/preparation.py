"""What a preparation does, whatever runs it: shards one by one, then the manifest.

A shard is written aside and renamed, then its report beside it; a shard with a report is finished
and not made again. The manifest comes when every shard has one.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from etils import epath

import hyla_lm
from data.row_writer import ShardReport, manifest_of, shard_name, write_shard
from hyla_lm.config import UserError
from hyla_lm.input.files import as_path
from hyla_lm.input.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    Shard,
    read_manifest,
    write_manifest,
    write_whole,
)
from hyla_lm.input.packing import Block
from hyla_lm.input.tokenizer import Tokenizer

REQUEST = ".request.json"


class DocumentSource(Protocol):
    """Documents that can be divided into shards, each made on its own."""

    @property
    def name(self) -> str:
        """What the manifest calls the source."""
        ...

    def content(self) -> list[str]:
        """What must be equal for a preparation to go on."""
        ...

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`, tokenised."""
        ...


@dataclass(frozen=True)
class Preparation:
    """One folder of rows to be made; the same preparation makes the same bytes on any engine."""

    source: DocumentSource
    tokenizer: Tokenizer
    folder: str
    split: str
    sequence_length: int
    shards: int

    def begin(self) -> list[int]:
        """The shards still to be made; raises UserError for a folder of another preparation."""
        path, request = self._path(REQUEST), self._request()
        if path.exists():
            _check_same(json.loads(path.read_text()), request, self.folder)
        else:
            folder = as_path(self.folder)
            if folder.exists() and any(p.suffix != ".partial" for p in folder.iterdir()):
                raise UserError(f"{self.folder} holds other files: give a new folder.")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(path, json.dumps(request, indent=1).encode())
            except OSError as error:
                raise UserError(f"{self.folder} cannot be written ({error}).") from error
        if self._path(MANIFEST).exists():
            return []
        return [index for index in range(self.shards) if not self._is_finished(index)]

    def make_shard(self, index: int) -> None:
        """Makes a shard and its report, unless they are there."""
        if self._is_finished(index):
            return
        blocks = self.source.blocks(index, self.shards, self.tokenizer)
        report = write_shard(
            self._path(self._name(index)), blocks, self.tokenizer, self.sequence_length
        )
        write_whole(self._report_path(index), json.dumps(asdict(report)).encode())

    def finish(self) -> Manifest:
        """Writes the manifest from the reports of all shards and removes them."""
        folder = as_path(self.folder)
        if self._path(MANIFEST).exists():
            return read_manifest(folder)
        reports = [self._report(index) for index in range(self.shards)]
        manifest = manifest_of(
            reports,
            self.tokenizer,
            split=self.split,
            source=self.source.name,
            sequence_length=self.sequence_length,
            seed=None,
        )
        write_manifest(folder, manifest)
        kept = {MANIFEST, REQUEST, *(shard.name for shard in manifest.shards)}
        for path in folder.iterdir():
            if path.name not in kept:
                path.unlink()
        return manifest

    def _request(self) -> dict[str, Any]:
        return {
            "source": self.source.name,
            "documents": self.source.content(),
            "tokenizer": self.tokenizer.sha256,
            "split": self.split,
            "sequence_length": self.sequence_length,
            "shards": self.shards,
            "producer": hyla_lm.__version__,
            "format": FORMAT,
        }

    def _is_finished(self, index: int) -> bool:
        if not self._report_path(index).exists():
            return False
        path, shard = self._path(self._name(index)), self._report(index).shard
        return path.exists() and path.stat().length == shard.size_bytes

    def _report(self, index: int) -> ShardReport:
        fields = json.loads(self._report_path(index).read_text())
        return ShardReport(Shard(**fields.pop("shard")), **fields)

    def _name(self, index: int) -> str:
        return shard_name(self.split, index, self.shards)

    def _report_path(self, index: int) -> epath.Path:
        return self._path(f".{self._name(index)}.json")

    def _path(self, name: str) -> epath.Path:
        return as_path(self.folder) / name


def _check_same(there: dict[str, Any], here: dict[str, Any], folder: str) -> None:
    for name, value in here.items():
        if there.get(name) != value:
            raise UserError(
                f"{folder} was begun with {name} = {_short(there.get(name))} but is asked for "
                f"with {_short(value)}: ask for the same or give a new folder."
            )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:200]}…"
