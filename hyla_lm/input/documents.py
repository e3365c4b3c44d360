"""Texts of documents from files: JSON lines (gzipped or not), plain text, TFDS ArrayRecord."""

import json
from collections.abc import Callable, Iterable, Iterator

from array_record.python.array_record_module import ArrayRecordReader
from etils import epath
from isal import isal_zlib

from hyla_lm.config import UserError
from hyla_lm.input.files import as_path, chunks, size_of
from hyla_lm.input.tf_example import bytes_feature

RECORDS_PER_READ = 512
GZIP = 31  # window bits that make it expect a gzip header and check its CRC


def read_texts(file: str, attempts: int = 1) -> Iterator[str]:
    """The texts of a file's documents, in order; raises UserError for a damaged file.

    .json, .jsonl: one object a line with a "text"; .txt: one document; *array_record*: TFDS
    records with a text feature. A name that ends in .gz is decompressed.
    """
    path = as_path(file)
    if size_of(path) is None:
        raise UserError(f"{file} does not exist: give .json.gz, .jsonl, .txt or ArrayRecord files.")
    return _reader(path.name)(path, attempts)


def check_gzip(file: str, attempts: int = 1) -> None:
    """Reads a .gz file to its end, where its checksum is; raises UserError if it is damaged."""
    if not file.endswith(".gz"):
        return
    for _ in _plain_bytes(as_path(file), attempts):
        pass


def is_record_file(file: str) -> bool:
    """Whether a file holds records that can be read in any order."""
    return "array_record" in file.rpartition("/")[2] or file.endswith(".arrayrecord")


def record_text(record: bytes) -> str:
    """The text of a TFDS record; raises ValueError where there is none."""
    return bytes_feature(record, "text").decode()


def _reader(name: str) -> Callable[[epath.Path, int], Iterator[str]]:
    plain = name.removesuffix(".gz")
    if is_record_file(name):
        return _record_texts
    if plain.endswith((".json", ".jsonl")):
        return _json_texts
    if plain.endswith(".txt"):
        return _whole_text
    raise UserError(
        f"{name} is of no known format: give .json.gz, .jsonl, .txt or ArrayRecord files "
        "(TFRecord needs a SeqIO task)."
    )


def _json_texts(path: epath.Path, attempts: int) -> Iterator[str]:
    number = 0
    for number, line in enumerate(_lines(_plain_bytes(path, attempts)), 1):
        if not line or line.isspace():
            continue
        try:
            text = json.loads(line)["text"]
            yield text if text.isascii() else text.encode("utf-8", "replace").decode()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: line {number} holds no text: mend that file.") from error
    if number == 0:
        raise UserError(f"{path} is empty: fetch the shard again.")


def _whole_text(path: epath.Path, attempts: int) -> Iterator[str]:
    try:
        yield b"".join(_plain_bytes(path, attempts)).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: convert it.") from error


def _record_texts(path: epath.Path, attempts: int) -> Iterator[str]:
    try:
        reader = ArrayRecordReader(str(path))
        total = reader.num_records()
        if total == 0:
            if not reader.ok():
                reader.read([0])  # raises the reason, if it is known
            raise ValueError("it holds no records")
        for start in range(0, total, RECORDS_PER_READ):
            for record in reader.read(start, min(start + RECORDS_PER_READ, total)):
                yield record_text(record)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path} is damaged ({reason}): fetch the shard again.") from error


def _plain_bytes(path: epath.Path, attempts: int) -> Iterator[bytes]:
    """The file's bytes, decompressed where its name ends in .gz."""
    stored = chunks(path, attempts)
    if path.suffix != ".gz":
        yield from stored
        return
    member = isal_zlib.decompressobj(GZIP)
    try:
        for chunk in stored:
            while chunk:
                member = isal_zlib.decompressobj(GZIP) if member.eof else member
                yield member.decompress(chunk)
                chunk = member.unused_data
    except isal_zlib.error as error:  # type: ignore[misc]  # isal types it as a value
        raise UserError(f"{path} is damaged ({error}): fetch the shard again.") from error
    if not member.eof:
        raise UserError(f"{path} is cut short: fetch the shard again.")


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        lines = (rest + part).split(b"\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest
