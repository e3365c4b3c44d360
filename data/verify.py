"""Checks folders of rows against their manifests, given by name or as the data of a run."""

import argparse
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

from etils import epath

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.config import gin_files
from hyla_lm.data.preparation import default_workers
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import MANIFEST, Manifest, Shard, check_manifest, read_manifest
from hyla_lm.input.rows import Counts, RowReader, count_rows
from hyla_lm.input.source import InFolders
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import READ_ATTEMPTS, PathLike, as_path, bucket_of, chunks, size_of

HELP = "check folders of rows against their manifests"

ROWS_PER_READ = 4096


def verify(folder: str, workers: int = 1, tokenizer: Tokenizer | None = None) -> Manifest:
    """Reads every byte and every row of a folder; raises UserError for the first fault found."""
    path = as_path(folder)
    manifest = read_manifest(path)
    check_manifest(path, manifest, tokenizer)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        counts = list(pool.map(partial(_check_shard, path, manifest), manifest.shards))
    for name, value in vars(sum(counts, Counts())).items():
        if value != getattr(manifest, name):
            raise UserError(
                f"{path / MANIFEST} counts {getattr(manifest, name)} {name} but its shards hold "
                f"{value}: prepare the rows again."
            )
    return manifest


def _check_shard(folder: epath.Path, manifest: Manifest, shard: Shard) -> Counts:
    ids, counts = manifest.special_ids, Counts()
    bos = ids["bos"] if ids["bos"] >= 0 else ids["pad"]
    with _on_disk(folder, shard) as place:
        rows = RowReader(place, replace(manifest, shards=(shard,), rows=shard.rows))
        for start in range(0, len(rows), ROWS_PER_READ):
            batch = rows.read(range(start, min(start + ROWS_PER_READ, len(rows))))
            counts += count_rows(batch["tokens"], batch["text_bytes"], bos)
    return counts


@contextmanager
def _on_disk(folder: epath.Path, shard: Shard) -> Iterator[PathLike]:
    """Hashes a shard; yields a folder of the disk that holds it, of a bucket's shard a copy."""
    path, digest = folder / shard.name, hashlib.sha256()
    if size_of(path) is None:
        raise UserError(f"{path} is missing: copy the shard or prepare the rows again.")
    with ExitStack() as stack:
        place, copy = folder, None
        if bucket_of(path):
            place = epath.Path(stack.enter_context(TemporaryDirectory()))
            copy = stack.enter_context((place / shard.name).open("wb"))
        for chunk in chunks(path, READ_ATTEMPTS):
            digest.update(chunk)
            if copy is not None:
                copy.write(chunk)
        if digest.hexdigest() != shard.sha256:
            raise UserError(f"{path} does not have the SHA-256 of its manifest: copy it again.")
        if copy is not None:
            copy.flush()
        yield place


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
        print(f"{folder} is whole. {verify(folder, options.workers, tokenizer).summary()}")


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
