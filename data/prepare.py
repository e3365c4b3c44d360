"""Example: hyla-lm data prepare --input my_text --output rows --train_tokenizer"""

import argparse
from collections.abc import Sequence

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.config import gin_files
from hyla_lm.data.own_text import (
    SEQUENCE_LENGTH,
    TRAIN,
    VALIDATION,
    VALIDATION_FRACTION,
    VOCAB_SIZE,
    OwnText,
)
from hyla_lm.data.preparation import DocumentSource, Preparation, default_workers, prepare
from hyla_lm.data.text_files import TextFiles, find_text_files
from hyla_lm.errors import UserError
from hyla_lm.input.documents import TEXT_FIELD
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.signals import signals

HELP = "make rows of text files or of a SeqIO task"


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    _check_flags(options)
    with signals():
        if options.train_tokenizer:
            _run_own_text(options, bindings)
        else:
            preparation = preparation_of(options, bindings)
            print(prepare(preparation, options.workers).summary())


def _files(options: argparse.Namespace, bindings: Sequence[str]) -> TextFiles:
    gin_files.read(options.gin_file, bindings)  # refuses bindings: text files have no settings
    suffixes = tuple(f".{suffix.lstrip('.')}" for suffix in options.suffix)
    files = find_text_files(options.input or options.paths, options.output, suffixes)
    return TextFiles(files, options.field, suffixes, options.on_error == "skip")


def _run_own_text(options: argparse.Namespace, bindings: Sequence[str]) -> None:
    files = _files(options, bindings)
    own = OwnText(
        files,
        options.output,
        options.vocab_size,
        options.sequence_length or SEQUENCE_LENGTH,
        VALIDATION_FRACTION if options.validation_fraction is None else options.validation_fraction,
        options.shards,
    )
    own.begin()
    survey = own.survey
    print(
        f"text: {survey.text_bytes / 1e6:,.2f} MB, documents: {survey.documents:,}, files: "
        f"{len(files.files):,}, blank documents left out: {survey.blank:,}"
    )
    held_out = f"{own.fraction:.3g} of the documents, by a hash of their text"
    if own.by_tail:
        held_out = f"the last {own.fraction:.3g} of each document (few, or of unequal size)"
    print(f"validation: {held_out}")
    tokenizer = own.make_tokenizer()
    print(f"tokenizer: {tokenizer.path}, {tokenizer.vocab_size:,} pieces")
    for split in (TRAIN, VALIDATION):
        print(prepare(own.preparation(split, tokenizer), options.workers).summary())


def _check_flags(options: argparse.Namespace) -> None:
    """Raises UserError for numbers out of range and for flags that do not go together."""
    for name in ("sequence_length", "shards", "workers", "vocab_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name}={value} must be at least 1.")
    fraction = options.validation_fraction
    if fraction is not None and not 0 < fraction < 1:
        raise UserError(f"--validation_fraction={fraction} must be above 0 and below 1.")
    trains, task = options.train_tokenizer, options.task
    needs_length = not trains and options.sequence_length is None
    mistakes = {
        "--train_tokenizer needs --input: a task has its own tokenizer.": trains and task,
        "--split needs --tokenizer: --train_tokenizer makes both splits.": trains and options.split,
        "--vocab_size needs --train_tokenizer.": not trains and options.vocab_size,
        "--validation_fraction needs --train_tokenizer.": not trains and fraction,
        "--tokenizer needs --sequence_length, the tokens of a row.": needs_length,
        "--field needs --input: a task has its own.": task and options.field != TEXT_FIELD,
    }
    for sentence, is_made in mistakes.items():
        if is_made:
            raise UserError(sentence)


def preparation_of(options: argparse.Namespace, bindings: Sequence[str]) -> Preparation:
    """The preparation of one split with a tokenizer that is there; raises UserError."""
    split = options.split or TRAIN
    tokenizer = Tokenizer(options.tokenizer)
    _ = tokenizer.special_ids  # raises UserError for a model that cannot mark documents
    source: DocumentSource
    if options.task:
        from hyla_lm.data.seqio_documents import SeqioTasks, TaskDocuments

        (settings,), _ = gin_files.read(options.gin_file, bindings, SeqioTasks)
        source = task = TaskDocuments(options.task, split, tokenizer, settings)
        task.check()
        shards = options.shards or task.default_shards()
    else:
        source = files = _files(options, bindings)
        shards = options.shards or files.default_shards()
    return Preparation(source, tokenizer, options.output, split, options.sequence_length, shards)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", nargs="+", metavar="PATH", help="folders, text files or globs")
    source.add_argument("paths", nargs="*", default=[], metavar="PATH", help="the same as --input")
    source.add_argument("--task", help="name of a SeqIO task or mixture (extra seqio)")
    parser.add_argument("--field", default=TEXT_FIELD, help="field or column that holds the text")
    parser.add_argument(
        "--suffix", nargs="+", default=[], help="more endings of files of plain text, such as .py"
    )
    parser.add_argument(
        "--on_error",
        choices=("stop", "skip"),
        default="stop",
        help="at a line of JSON or row of parquet without text; skip counts and leaves it out",
    )
    tokenizer = parser.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument(
        "--train_tokenizer",
        action="store_true",
        help="make OUTPUT/tokenizer.model, OUTPUT/train and OUTPUT/validation",
    )
    tokenizer.add_argument("--tokenizer", help="SentencePiece model; makes one split in OUTPUT")
    parser.add_argument("--split", help="which split this is, with --tokenizer (default: train)")
    parser.add_argument(
        "--sequence_length",
        type=int,
        help=f"T, tokens per row (default with --train_tokenizer: {SEQUENCE_LENGTH})",
    )
    parser.add_argument(
        "--vocab_size",
        type=int,
        help=f"pieces of the trained tokenizer (default: {VOCAB_SIZE}, or what the text gives)",
    )
    parser.add_argument(
        "--validation_fraction",
        type=float,
        help=f"part held out with --train_tokenizer (default: {VALIDATION_FRACTION})",
    )
    parser.add_argument("--output", required=True, help="folder of the rows, local or gs://")
    parser.add_argument(
        "--shards", type=int, help="files to write (default: one for each 32 MB read)"
    )
    parser.add_argument(
        "--workers", type=int, default=default_workers(), help="processes (default: all cores)"
    )
    add_gin_files(parser, "bindings of SeqIO tasks")
