"""A preparation of rows, on any engine: makes shards one by one, then the manifest.

A shard is written aside and renamed, then its report is written beside it. A shard with a report is
finished and not made again. The manifest is written when every shard has a report.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol

from etils import epath

import hyla_lm
from hyla_lm.data.row_writer import ShardReport, manifest_of, shard_name, write_shard
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    Shard,
    read_manifest,
    write_manifest,
)
from hyla_lm.input.packing import Block
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import as_path, bucket_errors, bucket_of, write_whole

REQUEST = ".request.json"


class DocumentSource(Protocol):
    """Documents that can be divided into shards, each made on its own."""

    @property
    def name(self) -> str:
        """The name of the source in the manifest."""
        ...

    def content(self) -> list[str]:
        """Lines that identify the documents; a preparation only goes on with equal ones."""
        ...

    def shards_of(self, entry: int, shards: int) -> list[int]:
        """The shards that depend on an entry of `content`."""
        ...

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`, tokenised."""
        ...


Baselines = Callable[[Manifest], dict[str, float]]


def no_baselines(manifest: Manifest) -> dict[str, float]:
    """Other models' bits per byte of the rows: none."""
    return {}


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
        begin_folder(self.folder, self._request(), self._is_mended)
        if self._path(MANIFEST).exists():
            return []
        return [index for index in range(self.shards) if not self._is_finished(index)]

    def make_shard(self, index: int) -> None:
        """Makes a shard and its report, unless they exist."""
        if self._is_finished(index):
            return
        blocks = self.source.blocks(index, self.shards, self.tokenizer)
        path = self._path(self._name(index))
        try:
            report = write_shard(path, blocks, self.tokenizer, self.sequence_length)
        except UserError:
            if _is_there(self._path(MANIFEST)):  # another process finished the same preparation
                return
            raise
        with _writing(self._report_path(index)):
            write_whole(self._report_path(index), json.dumps(asdict(report)).encode())

    def finish(self, baselines: Baselines = no_baselines) -> Manifest:
        """Writes the manifest from the reports of all shards and removes the reports."""
        folder = as_path(self.folder)
        with _writing(self._path(MANIFEST)):
            if not self._path(MANIFEST).exists():
                made = self._manifest()
                write_manifest(folder, replace(made, baselines_bits_per_byte=baselines(made)))
        reports = {self._report_path(index).name for index in range(self.shards)}
        for path in folder.iterdir():
            if path.name in reports or path.suffix == ".partial":
                path.unlink(missing_ok=True)
        return read_manifest(folder)

    def _manifest(self) -> Manifest:
        return manifest_of(
            [self._report(index) for index in range(self.shards)],
            self.tokenizer,
            split=self.split,
            source=self.source.name,
            sequence_length=self.sequence_length,
            seed=None,
        )

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

    def _is_mended(self, begun: dict[str, Any], asked: dict[str, Any]) -> bool:
        """Whether the requests differ only in sizes of files that no finished shard has used."""
        others = {**asked, "documents": None} == {**begun, "documents": None}
        before, after = begun.get("documents", []), asked["documents"]
        if not others or [_name(entry) for entry in before] != [_name(entry) for entry in after]:
            return False
        changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        return not any(
            self._is_finished(shard)
            for entry in changed
            for shard in self.source.shards_of(entry, self.shards)
        )

    def _is_finished(self, index: int) -> bool:
        if _is_there(self._path(MANIFEST)):
            return True
        try:
            with bucket_errors(self.folder):
                shard = self._report(index).shard
                return self._path(shard.name).stat().length == shard.size_bytes
        except (OSError, ValueError):
            return False

    def _report(self, index: int) -> ShardReport:
        fields = json.loads(self._report_path(index).read_text())
        return ShardReport(Shard(**fields.pop("shard")), **fields)

    def _name(self, index: int) -> str:
        return shard_name(self.split, index, self.shards)

    def _report_path(self, index: int) -> epath.Path:
        return self._path(f".{self._name(index)}.json")

    def _path(self, name: str) -> epath.Path:
        return as_path(self.folder) / name


def begin_folder(
    folder: str,
    request: dict[str, Any],
    may_replace: Callable[[dict[str, Any], dict[str, Any]], bool] = lambda begun, asked: False,
) -> None:
    """Writes what is asked for into a new folder; raises UserError for one of another request.

    `may_replace` says of (begun, asked) whether the new request takes the place of the old one.
    """
    place = as_path(folder)
    path = place / REQUEST
    content = json.dumps(request, indent=1).encode()
    with _writing(path):
        if not bucket_of(place):
            place.mkdir(parents=True, exist_ok=True)
        if not place.exists() or _is_empty(place):
            write_whole(path, content)
    if not path.exists():
        raise UserError(f"{folder} holds other files: give a new folder.")
    begun = _read_request(path)
    if begun != request and may_replace(begun, request):
        with _writing(path):
            write_whole(path, content)
    else:
        _check_same(begun, request, folder)


@contextmanager
def _writing(path: epath.Path) -> Iterator[None]:
    """Turns a failed write into a UserError, unless another process wrote the file meanwhile."""
    try:
        with bucket_errors(path):
            yield
    except OSError as error:
        if not _is_there(path):
            raise UserError(
                f"{path} cannot be written ({error}): make room or give another folder."
            ) from error


def _is_empty(folder: epath.Path) -> bool:
    """Whether a folder has only partial files; an empty one of a bucket lists itself."""
    itself = folder.name if bucket_of(folder) else ""
    return all(p.suffix == ".partial" or p.name == itself for p in folder.iterdir())


def _is_there(path: epath.Path) -> bool:
    """Whether a file exists; False if the store fails."""
    with suppress(OSError), bucket_errors(path):
        return path.exists()
    return False


def _name(entry: str) -> str:
    """The name in a line "name size"."""
    return entry.rpartition(" ")[0]


def _read_request(path: epath.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is damaged: give a new folder.") from error


def _check_same(there: dict[str, Any], here: dict[str, Any], folder: str) -> None:
    for name, asked in here.items():
        begun = there.get(name)
        if begun == asked:
            continue
        if isinstance(begun, list) and isinstance(asked, list):
            begun, asked = next((a, b) for a, b in zip_longest(begun, asked) if a != b)
        raise UserError(
            f"{folder} was begun with {name} = {json.dumps(begun)} but is asked for with "
            f"{json.dumps(asked)}: ask for the same or give a new folder."
        )
