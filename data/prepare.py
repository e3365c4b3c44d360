"""Makes rows of text: hyla-lm data prepare --help."""

import argparse
import sys
import time
from collections.abc import Sequence

from hyla_lm import ending, gin_files
from hyla_lm.command_line import add_gin_files, run_one
from hyla_lm.config import UserError
from hyla_lm.data.document_files import DocumentFiles
from hyla_lm.data.engines import default_workers, run_here, run_on_beam
from hyla_lm.data.preparation import Preparation
from hyla_lm.input.files import list_files
from hyla_lm.input.manifest import Manifest
from hyla_lm.input.tokenizer import Tokenizer

HELP = "make rows of text files or of a SeqIO task; unknown flags go to Beam"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this module alone."""
    return run_one("python -m data.prepare", sys.modules[__name__], arguments)


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    started = time.monotonic()
    preparation = preparation_of(options, bindings)
    manifest = prepare(preparation, options.engine, options.workers, options.unknown)
    print(summary(manifest))
    print(f"{options.output} made in {time.monotonic() - started:.1f} s")


def prepare(
    preparation: Preparation, engine: str = "plain", workers: int = 1, flags: Sequence[str] = ()
) -> Manifest:
    """Makes the missing shards of a folder of rows; returns its manifest. Raises UserError."""
    missing = preparation.begin()
    if missing and engine == "beam":
        run_on_beam(preparation, missing, flags)
    elif missing:
        run_here(preparation, missing, workers)
    return preparation.finish()


def preparation_of(options: argparse.Namespace, bindings: Sequence[str]) -> Preparation:
    for name in ("sequence_length", "shards"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name}={value} must be at least 1.")
    tokenizer = Tokenizer(options.tokenizer)
    _ = tokenizer.special_ids  # raises UserError for a model that cannot mark documents
    if options.task:
        from hyla_lm.data.seqio_documents import SeqioTasks, TaskDocuments

        (settings,) = gin_files.read(options.gin_file, bindings, SeqioTasks).values
        source = TaskDocuments.open(options.task, options.split, tokenizer, settings)
        shards = options.shards or source.default_shards()
        return _preparation(options, source, tokenizer, shards)
    gin_files.read(options.gin_file, bindings)  # refuses bindings: text files have no settings
    files = DocumentFiles(list_files(options.input, "--input"))
    shards = options.shards or files.default_shards()
    files.check(shards)
    return _preparation(options, files, tokenizer, shards)


def _preparation(options: argparse.Namespace, source, tokenizer, shards: int) -> Preparation:
    return Preparation(
        source, tokenizer, options.output, options.split, options.sequence_length, shards
    )


def summary(manifest: Manifest) -> str:
    """One line about a folder of rows."""
    size = sum(shard.size_bytes for shard in manifest.shards)
    return (
        f"{manifest.split}: {manifest.documents:,} documents, {manifest.text_bytes / 1e6:,.2f} MB "
        f"of text, {manifest.tokens:,} tokens, "
        f"{manifest.text_bytes / manifest.tokens:.2f} bytes per token, {manifest.rows:,} rows in "
        f"{len(manifest.shards)} shards of {size / 1e6:,.1f} MB in all"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", nargs="+", metavar="FILE", help="paths or globs of text files")
    source.add_argument("--task", help="name of a SeqIO task or mixture (extra seqio)")
    parser.add_argument("--split", default="train", help="which split this is")
    parser.add_argument("--tokenizer", required=True, help="SentencePiece model")
    parser.add_argument("--sequence_length", type=int, required=True, help="T, tokens a row")
    parser.add_argument("--output", required=True, help="folder of the rows, local or gs://")
    parser.add_argument("--shards", type=int, help="files to write (default: one a file read)")
    parser.add_argument(
        "--workers", type=int, default=default_workers(), help="processes (default: one a core)"
    )
    parser.add_argument("--engine", choices=("plain", "beam"), default="plain")
    add_gin_files(parser, "bindings of SeqIO tasks")


if __name__ == "__main__":
    ending.process(main)
