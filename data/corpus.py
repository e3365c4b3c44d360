"""Corpora on disk: gzipped JSON lines of C4's shape (text, timestamp, url), and plain text."""

import gzip
import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

TIMESTAMP = "1970-01-01T00:00:00Z"
VALIDATION_SHARE = 50


@dataclass(frozen=True)
class Document:
    """One document of a corpus; the timestamp is constant so that bytes are reproducible."""

    text: str
    url: str
    timestamp: str = TIMESTAMP


def split_of(url: str) -> str:
    """The fixed split of a document: about one in 50 is validation."""
    digest = hashlib.sha256(url.encode()).digest()
    chosen = int.from_bytes(digest[:8], "big") % VALIDATION_SHARE == 0
    return "validation" if chosen else "train"


def corpus_file(folder: Path, split: str) -> Path:
    """The file of a split in a corpus folder."""
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
