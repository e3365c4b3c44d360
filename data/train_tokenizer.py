"""Example: hyla-lm data tokenizer --input my_text --output tokenizer.model"""

import argparse
import hashlib
import heapq
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import chain, count
from pathlib import Path
from typing import Any

import sentencepiece

from hyla_lm.config import gin_files
from hyla_lm.data.text_files import TextFiles, find_text_files
from hyla_lm.errors import UserError
from hyla_lm.input.documents import TEXT_FIELD
from hyla_lm.signals import signals
from hyla_lm.storage import PathLike, as_path, bucket_of, storage_errors, write_whole

HELP = "train a SentencePiece tokenizer"
SAMPLE_BYTES = 4_000_000
MAX_LINE_CHARACTERS = 1000  # SentencePiece drops longer lines
MAX_LINE_BYTES = 4 * MAX_LINE_CHARACTERS
# Bounds of the training text that keep SentencePiece's time linear in it, whatever it holds.
PASSAGE_CHARACTERS = 65_536  # so that a sample of one long document is no longer than wanted
MAX_PIECE_CHARACTERS = 200
MOST_COPIES = 16
# SentencePiece has no pieces with tabs, and takes U+2581 for a space: other characters stand for
# them while it trains and encodes, and decoding gives them back.
ESCAPE, TAB = "\x1b", "\x0b"
STAND_INS = {"\t": TAB, TAB: ESCAPE + TAB, "\u2581": ESCAPE + "_", ESCAPE: ESCAPE + ESCAPE}
FIXED_PIECES = 4 + 256 + 1  # special ones, bytes and the newline
MOST_CHARACTERS = 0.75  # of the other pieces, where a text has more characters than pieces
PROGRESS_SECONDS = 5
LONG_WORD = re.compile(r"([!-~]{64})[!-~]+")


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    output: PathLike,
    sample_bytes: int = SAMPLE_BYTES,
    *,
    for_code: bool = False,
    at_most: bool = False,
) -> None:
    """Writes a unigram model with byte fallback that keeps spaces and newlines.

    Trains on a fixed sample of the texts; the same texts give the same bytes. `for_code` gives runs
    of spaces and tabs their own pieces, and trains in a time that is linear in any text. With
    `at_most` a text that gives fewer pieces gets fewer. Characters beyond the room in `vocab_size`
    are written as bytes, the rarest first. Raises UserError if vocab_size does not suit.
    """
    sentencepiece.SetMinLogLevel(2)
    model = io.BytesIO()
    if for_code:
        passages = (part for text in texts for part in _cut(text, PASSAGE_CHARACTERS))
        lines = distinct_lines(sample(passages, sample_bytes))
    else:
        chosen = sample(texts, sample_bytes)
        short = (_cut(line, MAX_LINE_CHARACTERS) for text in chosen for line in text.splitlines())
        lines = list(chain.from_iterable(short))
    # An option that is given, be it its default, is a part of the model's bytes.
    options: dict[str, Any] = {"hard_vocab_limit": False} if at_most else {}
    if for_code:
        as_stand_ins = sentencepiece.SentencePieceNormalizer(
            norm_map=[*STAND_INS.items()], add_dummy_prefix=True, escape_whitespaces=True
        )
        options |= {"allow_whitespace_only_pieces": True, "normalizer": as_stand_ins}
    else:
        options |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    if not any(map(str.strip, lines)):
        raise UserError(f"{output} cannot be trained without text: give --input files with text.")
    lines = _without_rare_characters(lines, vocab_size)

    def train() -> None:
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
            max_sentence_length=MAX_LINE_BYTES,
            num_threads=2,
            **options,
        )

    try:
        _show_progress(train, sum(map(len, lines)))
    except RuntimeError as error:
        reason = str(error).strip().rpartition("] ")[2].rstrip(".")
        raise UserError(f"vocab_size = {vocab_size} does not suit this text: {reason}.") from error
    if for_code:
        back = [(stand_in, own) for own, stand_in in STAND_INS.items()]
        spec = sentencepiece.SentencePieceNormalizer(norm_map=back).serialized_normalizer_spec()
        # Field 5 of a model, its denormalizer, with a length of two bytes.
        model.write(bytes([5 << 3 | 2, len(spec) & 127 | 128, len(spec) >> 7]) + spec)
    path = as_path(output)
    with storage_errors(path, "written", "change --output"):
        if not bucket_of(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, model.getvalue())


def _without_rare_characters(lines: list[str], vocab_size: int) -> list[str]:
    """Lines with a newline, a fixed piece, for the rarest characters if not all can be pieces."""
    room = vocab_size - FIXED_PIECES
    if len({" "}.union(*lines)) <= room:
        return lines
    if room < 2:
        raise UserError(f"vocab_size = {vocab_size} must be at least {FIXED_PIECES + 2}.")
    counts = Counter(chain.from_iterable(lines))
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    rare = str.maketrans(dict.fromkeys(ranked[int(room * MOST_CHARACTERS) :], "\n"))
    return [line.translate(rare) for line in lines]


def _show_progress(train: Callable[[], None], characters: int) -> None:
    """Trains in a thread, and prints the time every few seconds."""
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train)
        for tick in count():
            line = f"training the tokenizer on {characters / 1e6:,.2f} million characters"
            print(f"{line}: {tick * PROGRESS_SECONDS} s", file=sys.stderr)
            if wait([training], PROGRESS_SECONDS).done:
                return training.result()


def sample(texts: Iterable[str], limit: int) -> list[str]:
    """The texts of least hash, about `limit` bytes in all; their order does not matter."""
    chosen: list[tuple[int, str]] = []
    size = 0
    for text in texts:
        data = text.encode()
        rank = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
        heapq.heappush(chosen, (-rank, text))
        size += len(data)
        while size > limit and len(chosen) > 1:
            size -= len(heapq.heappop(chosen)[1].encode())
    return [text for _, text in sorted(chosen)]


def _cut(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def distinct_lines(texts: Iterable[str]) -> list[str]:
    """Short lines in the order of a hash, the same one at most a few times, long words cut.

    SentencePiece takes time in proportion to the square of the longest text that repeats.
    """
    copies: Counter[str] = Counter()
    for text in texts:
        for line in LONG_WORD.sub(r"\1", text).splitlines():
            copies.update(_cut(line, MAX_PIECE_CHARACTERS))
    entries = ((line, copy) for line, n in copies.items() for copy in range(min(n, MOST_COPIES)))

    def rank(entry: tuple[str, int]) -> bytes:
        return hashlib.sha256(f"{entry[1]} {entry[0]}".encode()).digest()

    return [line for line, _ in sorted(entries, key=rank)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", nargs="+", metavar="PATH", required=True, help="folders, text files or globs"
    )
    parser.add_argument("--field", default=TEXT_FIELD, help="field or column that holds the text")
    parser.add_argument("--vocab_size", type=int, default=4096, help="pieces of the tokenizer")
    parser.add_argument("--sample_bytes", type=int, default=SAMPLE_BYTES, help="text to train on")
    parser.add_argument("--output", type=Path, required=True, help="the .model file to write")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    gin_files.read([], bindings)  # refuses bindings: text files have no settings
    texts = TextFiles(find_text_files(options.input), options.field).texts()
    asked = (options.vocab_size, options.output, options.sample_bytes)
    with signals():
        train_tokenizer(texts, *asked, for_code=True)
    print(options.output)
