"""Trains a SentencePiece tokenizer: hyla-lm data tokenizer --help."""

import argparse
import hashlib
import heapq
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import sentencepiece

from hyla_lm import ending, gin_files
from hyla_lm.command_line import add_gin_files, run_one
from hyla_lm.config import UserError
from hyla_lm.input.documents import read_texts
from hyla_lm.input.files import list_files, write_whole

HELP = "train a SentencePiece tokenizer"
SAMPLE_BYTES = 4_000_000
MAX_LINE_CHARACTERS = 1000
MAX_LINE_BYTES = 4 * MAX_LINE_CHARACTERS


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, output: Path, sample_bytes: int = SAMPLE_BYTES
) -> None:
    """Writes a unigram model with byte fallback that keeps spaces and newlines.

    Trains on a fixed sample of the texts; the same texts give the same bytes. Raises UserError if
    vocab_size is too large or too small for the texts.
    """
    model = io.BytesIO()
    lines = list(_lines(sample(texts, sample_bytes)))
    if not lines:
        raise UserError(f"{output} cannot be trained without text: give --input files with text.")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            pad_id=0,
            eos_id=1,
            bos_id=2,
            unk_id=3,
            byte_fallback=True,
            user_defined_symbols=["\n"],
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=MAX_LINE_BYTES,
            num_threads=2,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().rpartition("] ")[2].rstrip(".")
        raise UserError(
            f"vocab_size = {vocab_size} does not suit this text ({reason}): change vocab_size."
        ) from error
    _write(output, model.getvalue())


def sample(texts: Iterable[str], limit: int) -> list[str]:
    """The texts of least hash, about `limit` bytes in all; their order does not matter."""
    kept: list[tuple[int, str]] = []
    size = 0
    for text in texts:
        data = text.encode()
        rank = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
        heapq.heappush(kept, (-rank, text))
        size += len(data)
        while size > limit and len(kept) > 1:
            size -= len(heapq.heappop(kept)[1].encode())
    return [text for _, text in sorted(kept)]


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Lines short enough that SentencePiece does not drop them."""
    for text in texts:
        for line in text.splitlines():
            for start in range(0, len(line), MAX_LINE_CHARACTERS):
                yield line[start : start + MAX_LINE_CHARACTERS]


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}): change --output."
        ) from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", nargs="+", metavar="FILE", help="paths or globs of text files")
    source.add_argument("--task", help="name of a SeqIO task or mixture (extra seqio)")
    parser.add_argument("--split", default="train", help="split of the task")
    parser.add_argument("--vocab_size", type=int, default=4096)
    parser.add_argument("--sample_bytes", type=int, default=SAMPLE_BYTES, help="text to train on")
    parser.add_argument("--output", type=Path, required=True, help="the .model file to write")
    add_gin_files(parser, "bindings of SeqIO tasks")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    texts = _texts(options, bindings)
    train_tokenizer(texts, options.vocab_size, options.output, options.sample_bytes)
    print(options.output)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this module alone."""
    return run_one("python -m data.train_tokenizer", sys.modules[__name__], arguments)


def _texts(options: argparse.Namespace, bindings: Sequence[str]) -> Iterator[str]:
    if options.task is None:
        gin_files.read(options.gin_file, bindings)  # refuses bindings: text files have no settings
        return chain.from_iterable(map(read_texts, list_files(options.input, "--input")))
    from hyla_lm.data.seqio_documents import SeqioTasks, task_texts

    (settings,) = gin_files.read(options.gin_file, bindings, SeqioTasks).values
    return task_texts(options.task, options.split, settings)


if __name__ == "__main__":
    ending.process(main)
