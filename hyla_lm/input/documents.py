"""Texts of documents from files: plain text, JSON lines, parquet, TFDS ArrayRecord.

TFDS writes a tf.train.Example a record, which is read here without TensorFlow: Example { Features
features = 1 }, Features { map<string, Feature> feature = 1 }, Feature { BytesList bytes_list = 1 },
BytesList { repeated bytes value = 1 }.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

from etils import epath
from isal import isal_zlib

from hyla_lm.errors import Unavailable, UserError
from hyla_lm.input.rows import Records
from hyla_lm.package import install
from hyla_lm.storage import CHUNK_BYTES, as_path, chunks, size_of, storage_errors, text_of

PARQUET_ROWS_PER_READ = 512
LONGEST_LINE_BYTES = 64 << 20  # so that a file that is no JSON lines does not fill the memory
LENGTH_DELIMITED = 2  # the kind of all fields of a tf.train.Example here
NO_EXAMPLE = "no serialized tf.train.Example"
GZIP = 31  # window bits that make it expect a gzip header and check its CRC
TEXT_FIELD = "text"
KINDS = ".txt, .md, .json, .jsonl, .ndjson (also .gz or .zst), .parquet or ArrayRecord files"
COMPRESSED = re.compile(r"\.(gz|zst)$")
RECORDS = re.compile(r"\.array_?record(-\d{5}-of-\d{5})?$", re.I)
# What lies in place of a file that was not fetched, or was written in another encoding.
IN_PLACE = {
    rb"version https://git-lfs": "is a Git LFS pointer: fetch the file itself with git lfs pull",
    rb"\s*(?i:<!doctype html|<html)": "is an HTML page: fetch the file itself",
    rb"\xff\xfe|\xfe\xff": "is UTF-16: convert it to UTF-8",
}
Skipped = Counter[str] | None  # rows without text of each file, or None where one is an error
Reader = Callable[[epath.Path, str, Skipped], Iterator[str]]


def read_texts(
    file: str, field: str = TEXT_FIELD, suffixes: tuple[str, ...] = (), skipped: Skipped = None
) -> Iterator[str]:
    """The texts of a file's documents, in order; raises UserError for a damaged file.

    .txt, .md and `suffixes`: one document, without byte order mark and with LF for CRLF. .json,
    .jsonl, .ndjson: one object a line; .parquet: one row; .array_record: one TFDS record; their
    text is in `field`, and taken unchanged. A name that ends in .gz or .zst is decompressed.
    Lines and rows without text are counted in `skipped` and left out, or raise UserError.
    """
    path = as_path(file)
    if size_of(path) is None:
        raise UserError(f"{file} is no file: give {KINDS}.")
    reader = _reader(path.name, suffixes)
    if reader is None:
        raise UserError(
            f"{path.name} is of no known format: give {KINDS} (TFRecord needs a SeqIO task)."
        )
    try:
        with storage_errors(path, "read", "check the file and its permissions"):
            yield from reader(path, field, skipped)
    except UserError as error:
        if not isinstance(error, Unavailable):
            _check_content(path, next(chunks(path), b""))
        raise


def is_text_file(name: str, suffixes: tuple[str, ...] = ()) -> bool:
    """Whether `read_texts` knows this kind of file."""
    return _reader(name, suffixes) is not None


def is_record_file(file: str) -> bool:
    """Whether a file holds records that can be read in any order."""
    return RECORDS.search(file) is not None


class TextRecords:
    """Random access to the texts of a TFDS dataset in ArrayRecord; raises UserError for damage."""

    def __init__(self, files: Sequence[str], field: str = TEXT_FIELD):
        self._records, self._field = Records(files), field

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: SupportsIndex) -> str:
        record = self._records[index]
        try:
            return _record_text(record, self._field)
        except ValueError as error:
            file, place = self._records.locate(int(index))
            raise UserError(
                f"{self._records.files[file]}: record {place} holds no text ({error}): "
                "give shards of a TFDS dataset with text in that feature."
            ) from error


def _reader(name: str, suffixes: tuple[str, ...]) -> Reader | None:
    name = name.lower()
    plain = COMPRESSED.sub("", name)
    if is_record_file(name):
        return lambda path, field, skipped: iter(TextRecords([str(path)], field))
    if plain.endswith((".json", ".jsonl", ".ndjson")):
        return _json_texts
    if plain.endswith((".txt", ".md", *map(str.lower, suffixes))):
        return _whole_text
    return _parquet_texts if name.endswith(".parquet") else None


def _check_content(path: epath.Path, content: bytes) -> None:
    is_page = COMPRESSED.sub("", path.name.lower()).endswith((".html", ".htm"))
    for pattern, sentence in IN_PLACE.items():
        if re.match(pattern, content) and not is_page:
            raise UserError(f"{path} {sentence}.")


def _json_texts(path: epath.Path, field: str, skipped: Skipped) -> Iterator[str]:
    number = 0
    for number, line in enumerate(_lines(_plain_bytes(path)), 1):
        if len(line) > LONGEST_LINE_BYTES:
            raise UserError(
                f"{path}: line {number} has more than {LONGEST_LINE_BYTES:,} bytes: cut the "
                "document, one object per line."
            )
        if not line or line.isspace():
            continue
        try:
            text = _json_text(line, field)
        except ValueError as error:
            if number == 1:
                _check_content(path, line)
            if skipped is None:
                raise UserError(f"{path}: line {number} {error}.") from error
            skipped[str(path)] += 1
            continue
        yield text if text.isascii() else text.encode("utf-8", "replace").decode()
    if number == 0:
        raise UserError(f"{path} is empty: fetch the shard again.")


def _json_text(line: bytes, field: str) -> str:
    """The text of a line; raises ValueError, which says what is wrong with it."""
    try:
        value = json.loads(line)
        text = value.get(field)
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8: convert the file") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError("is no JSON object: write one object per line") from error
    if not isinstance(text, str):
        raise ValueError(
            f"has no text in {field!r} but the fields {', '.join(map(repr, value)):.200}: "
            "mend that file, or name another with --field"
        )
    return text


def _whole_text(path: epath.Path, field: str, skipped: Skipped) -> Iterator[str]:
    content = b"".join(_plain_bytes(path))
    _check_content(path, content)
    yield text_of(content, str(path))


def _record_text(record: bytes, field: str) -> str:
    """The first value of a feature of an example; raises ValueError where there is none."""
    for features in _messages(record, 1):
        for entry in _messages(features, 1):
            if next(_messages(entry, 1), b"") == field.encode():
                for feature in _messages(entry, 2):
                    for bytes_list in _messages(feature, 1):
                        for value in _messages(bytes_list, 1):
                            return value.decode()
    raise ValueError(f"no bytes in feature {field!r}")


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    """The contents of the fields with this number."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        size, place = _varint(message, place)
        if tag & 7 != LENGTH_DELIMITED or place + size > len(message):
            raise ValueError(NO_EXAMPLE)
        if tag >> 3 == number:
            yield message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise ValueError(NO_EXAMPLE)


def _pyarrow(path: epath.Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow: {install('parquet')}.") from error
    return pyarrow


def _parquet_texts(path: epath.Path, field: str, skipped: Skipped) -> Iterator[str]:
    arrow = _pyarrow(path)
    try:
        with path.open("rb") as opened, arrow.parquet.ParquetFile(opened) as file:
            names = file.schema_arrow.names
            if field not in names:
                there = ", ".join(map(repr, names)) or "none"
                raise UserError(
                    f"{path} has no column {field!r} but {there:.200}: name one with --field."
                )
            batches = file.iter_batches(PARQUET_ROWS_PER_READ, columns=[field])
            texts = (text for batch in batches for text in batch[0].to_pylist())
            for number, text in enumerate(texts, 1):
                if isinstance(text, str):
                    yield text
                elif skipped is not None:
                    skipped[str(path)] += 1
                else:
                    raise UserError(
                        f"{path}: row {number} holds no text (column {field!r} is no string): "
                        "mend that file, or name another column with --field."
                    )
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: column {field!r} is not UTF-8: convert it.") from error
    except arrow.ArrowException as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{path} is no parquet file or damaged ({reason:.120}): fetch it again."
        ) from error


def _plain_bytes(path: epath.Path) -> Iterator[bytes]:
    """The file's bytes in parts of a bounded size, decompressed where its name says so."""
    kind = path.suffix.lower()
    if kind == ".zst":
        arrow = _pyarrow(path)
        with path.open("rb") as opened, arrow.CompressedInputStream(opened, "zstd") as stream:
            while part := stream.read(CHUNK_BYTES):
                yield part
    elif kind == ".gz":
        yield from _gzip_bytes(path)
    else:
        yield from chunks(path)


def _gzip_bytes(path: epath.Path) -> Iterator[bytes]:
    """The content of all members, between which there may be zeros."""
    member, has_more = isal_zlib.decompressobj(GZIP), False
    try:
        for chunk in chunks(path):
            while chunk or has_more:
                if member.eof:
                    if not (chunk := chunk.lstrip(b"\0")):
                        break
                    member = isal_zlib.decompressobj(GZIP)
                part = member.decompress(chunk, CHUNK_BYTES)
                yield part
                has_more = len(part) == CHUNK_BYTES and not member.eof
                chunk = member.unused_data if member.eof else member.unconsumed_tail
    except isal_zlib.error as error:  # type: ignore[misc]  # isal types it as a value
        raise UserError(f"{path} is no gzip data or damaged ({error}): fetch it again.") from error
    if not member.eof:
        raise UserError(f"{path} is cut short: fetch the shard again.")


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Lines, of which one that is too long is the last, and cut."""
    rest = b""
    for part in parts:
        lines = (rest + part).split(b"\n")
        rest = lines.pop()
        yield from lines
        if len(rest) > LONGEST_LINE_BYTES:
            break
    if rest:
        yield rest
