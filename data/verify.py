"""Checks folders of rows against their manifests, given by name or as the data of a run."""

import argparse
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import NamedTemporaryFile

import numpy as np
from etils import epath

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.config import gin_files
from hyla_lm.data.engines import default_workers
from hyla_lm.data.prepare import summary
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    check_manifest,
    read_manifest,
    row_dtype,
)
from hyla_lm.input.records import Records
from hyla_lm.input.rows import RowReader, decode_rows
from hyla_lm.input.source import InFolders
from hyla_lm.input.tokenizer import SPECIAL, Tokenizer
from hyla_lm.storage import READ_ATTEMPTS, as_path, bucket_of, chunks, size_of

HELP = "check folders of rows against their manifests"

ROWS_PER_READ = 4096


@dataclass(frozen=True)
class Found:
    """Counts over the rows of a shard."""

    rows: int = 0
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0
    max_token_id: int = 0

    def __add__(self, other: "Found") -> "Found":
        return Found(
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.documents + other.documents,
            self.text_bytes + other.text_bytes,
            max(self.max_token_id, other.max_token_id),
        )


def verify(folder: str, workers: int = 1, tokenizer: Tokenizer | None = None) -> Manifest:
    """Reads every byte and every row of a folder; raises UserError for the first fault found."""
    path = as_path(folder)
    manifest = read_manifest(path)
    _check_facts(path, manifest)
    if tokenizer is not None:
        check_manifest(path, manifest, tokenizer)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        found = list(pool.map(partial(_check_shard, path, manifest), manifest.shards))
    total = sum(found, Found())
    for name, value in vars(total).items():
        if value != getattr(manifest, name):
            raise UserError(
                f"{path / MANIFEST} counts {getattr(manifest, name)} {name} but its shards hold "
                f"{value}: prepare the rows again."
            )
    RowReader(path, manifest, READ_ATTEMPTS)  # checks that the folder opens
    return manifest


def _check_facts(folder: epath.Path, manifest: Manifest) -> None:
    """The checks of check_manifest that need no tokenizer."""
    names = {shard.name for shard in manifest.shards}
    is_sound = (
        len(names) == len(manifest.shards) > 0
        and set(manifest.special_ids) == set(SPECIAL)
        and manifest.dtype == row_dtype(manifest.vocab_size)
    )
    if not is_sound:
        raise UserError(f"{folder / MANIFEST} contradicts itself: prepare the rows again.")


def _check_shard(folder: epath.Path, manifest: Manifest, shard: Shard) -> Found:
    path = folder / shard.name
    if size_of(path) is None:
        raise UserError(f"{path} is missing: copy the shard or prepare the rows again.")
    bos = manifest.special_ids["bos"]
    bos = bos if bos >= 0 else manifest.special_ids["pad"]
    with _on_disk(path, shard.sha256) as local:
        parts = [_count(*rows, bos) for rows in _rows(local, path, manifest)]
    found = sum(parts, Found())
    if found.rows != shard.rows:
        raise UserError(f"{path} holds {found.rows} rows, not {shard.rows}: prepare them again.")
    if found.max_token_id >= manifest.vocab_size:
        raise UserError(
            f"{path} holds the id {found.max_token_id}, beyond the vocabulary of "
            f"{manifest.vocab_size}: prepare the rows again."
        )
    return found


@contextmanager
def _on_disk(path: epath.Path, sha256: str) -> Iterator[str]:
    """Hashes the shard; yields it as a local file, which is a copy if it is in a bucket."""
    digest = hashlib.sha256()
    with ExitStack() as stack:
        copy = stack.enter_context(NamedTemporaryFile()) if bucket_of(path) else None
        for chunk in chunks(path, READ_ATTEMPTS):
            digest.update(chunk)
            if copy is not None:
                copy.write(chunk)
        if digest.hexdigest() != sha256:
            raise UserError(f"{path} does not have the SHA-256 of its manifest: copy it again.")
        if copy is not None:
            copy.flush()
        yield str(path) if copy is None else copy.name


def _rows(
    local: str, path: epath.Path, manifest: Manifest
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    records = Records([local])
    for start in range(0, len(records), ROWS_PER_READ):
        batch = [records[i] for i in range(start, min(start + ROWS_PER_READ, len(records)))]
        wrong = next((len(record) for record in batch if len(record) != manifest.row_bytes), None)
        if wrong is not None:
            raise UserError(f"{path} holds a row of {wrong} bytes, not {manifest.row_bytes}.")
        yield decode_rows(batch, manifest.dtype)


def _count(tokens: np.ndarray, text_bytes: np.ndarray, bos: int) -> Found:
    """Counts of some rows; a document starts at a BOS whose next token is no BOS."""
    is_bos = tokens == bos
    return Found(
        rows=len(tokens),
        tokens=int(np.count_nonzero(~is_bos[:, 1:])),
        documents=int(np.count_nonzero(is_bos[:, :-1] & ~is_bos[:, 1:])),
        text_bytes=int(text_bytes.sum(dtype=np.int64)),
        max_token_id=int(tokens.view(np.uint32).max()),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    add_gin_files(parser, "file of a run, to check all the rows that its data names")
    parser.add_argument("--tokenizer", help="also check that this model made the rows")
    parser.add_argument(
        "--workers", type=int, default=default_workers(), help="threads (default: one a core)"
    )


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    folders, model = list(options.folders), options.tokenizer
    if options.gin_file:
        named = _data_of_run(options.gin_file, bindings)
        folders, model = [*folders, *named.folders], model or named.tokenizer
    else:
        gin_files.read([], bindings)  # refuses bindings: rows have no settings
    if not folders:
        raise UserError("FOLDER is missing: give folders of rows, or the --gin_file of a run.")
    tokenizer = Tokenizer(model) if model else None
    for folder in folders:
        print(f"{folder} is whole. {summary(verify(folder, options.workers, tokenizer))}")


def _data_of_run(files: list[str], bindings: list[str]) -> InFolders:
    """The data of a run, after the checks that a start of training makes."""
    from hyla_lm.config.read_experiment import read_experiment

    train = read_experiment(files, bindings).train
    data = getattr(train.task, "data", None)
    if not isinstance(data, InFolders):
        raise UserError(
            "--gin_file sets data that is in no folders of rows: bind LanguageModel.data to "
            "@Rows(), @OwnRows() or @RowMixture(), or give the folders."
        )
    assert train.task is not None
    train.task.prepare_task(train.batch_size)
    return data
