"""Corpora on disk: gzipped JSON lines of C4's shape (text, timestamp, url), and plain text."""

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hyla_lm.config import UserError

TIMESTAMP = "1970-01-01T00:00:00Z"
VALIDATION_SHARE = 50


@dataclass(frozen=True)
class Document:
    """One document of a corpus; the timestamp is constant so that bytes are reproducible."""

    text: str
    url: str
    timestamp: str = TIMESTAMP


def split_of(url: str) -> str:
    """The split a document belongs to, for good: about one in 50 is validation."""
    digest = hashlib.sha256(url.encode()).digest()
    chosen = int.from_bytes(digest[:8], "big") % VALIDATION_SHARE == 0
    return "validation" if chosen else "train"


def corpus_file(folder: Path, split: str) -> Path:
    """Where a folder keeps a split."""
    return folder / f"{split}.json.gz"


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """Writes gzipped JSON lines, the same bytes for the same documents."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as lines,
    ):
        for document in documents:
            lines.write(json.dumps(asdict(document), sort_keys=True) + "\n")


def read_texts(path: Path) -> Iterator[str]:
    """The texts of a .json, .jsonl (gzipped or not) or .txt file; raises UserError."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: give a .json.gz, .jsonl or .txt file.")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            if ".txt" in path.suffixes:
                yield lines.read()
            else:
                yield from (_text(line) for line in lines if line.strip())
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged or holds no documents: make it again.") from error


def _text(line: str) -> str:
    text: str = json.loads(line)["text"]
    return text.encode("utf-8", "replace").decode()
