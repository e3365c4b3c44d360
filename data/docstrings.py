"""A corpus without downloads: docstrings of installed Python, which is parsed, not imported.

Files have C4's shape: gzipped JSON lines of text, timestamp and url.
"""

import ast
import gc
import gzip
import hashlib
import io
import json
import os
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import track

from hyla_lm.data.prose import TERMINAL, paragraphs
from hyla_lm.signals import end_with_parent
from hyla_lm.storage import written_aside

SKIPPED_FOLDERS = frozenset(
    [
        *("__pycache__", "conftest", "dist-packages", "fixtures", "hyla_lm", "idle_test"),
        *("lib2to3", "node_modules", "site-packages", "test", "test_data", "testdata", "testing"),
        *("tests", "_vendor", "vendor", "vendored", "_vendored_packages"),
    ]
)
MIN_SENTENCES = 3
MIN_CHARACTERS = 100
TIMESTAMP = "1970-01-01T00:00:00Z"
VALIDATION_SHARE = 50
FILES_PER_TASK = 32
SERIAL_BELOW = 200
BLOCKS = ("body", "handlers", "orelse", "finalbody")  # of statements, in source order

File = tuple[str, str]


@dataclass(frozen=True)
class Document:
    """One document of a corpus; the timestamp is constant so that bytes are reproducible."""

    text: str
    url: str
    timestamp: str = TIMESTAMP


def installed_roots() -> list[Path]:
    """The folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")))


def collect(roots: Sequence[Path]) -> list[Document]:
    """A document for each module under the roots, by url: its prose without repeated paragraphs."""
    files = sorted(file for root in roots for file in _python_files(root))
    earlier: set[str] = set()
    documents = []
    for (url, _), prose in zip(files, _read_all(files), strict=True):
        fresh = [text for text in dict.fromkeys(prose) if text not in earlier]
        earlier.update(fresh)
        if _is_long_enough(fresh):
            documents.append(Document("\n".join(fresh), url))
    return documents


def read_prose(file: File) -> list[str]:
    """The prose paragraphs of one (url, path), in source order; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(Path(file[1]).read_bytes())
        return [text for docstring in _docstrings(tree) for text in paragraphs(docstring)]
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return []


def _python_files(root: Path) -> Iterator[File]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(".py") and not name.startswith(("test_", "conftest")):
                path = Path(folder, name)
                yield f"python://{path.relative_to(root).as_posix()}", str(path)


def _read_all(files: Sequence[File]) -> Iterator[list[str]]:
    if len(files) < SERIAL_BELOW:
        yield from map(read_prose, files)
        return
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), _begin_worker) as pool:
        results = pool.map(read_prose, files, chunksize=FILES_PER_TASK)
        yield from track(results, "reading docstrings", len(files), console=Console(stderr=True))


def _begin_worker() -> None:
    end_with_parent()
    gc.disable()


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node) or ""
    for block in BLOCKS:
        for child in getattr(node, block, ()):
            yield from _docstrings(child)


def _is_long_enough(texts: Iterable[str]) -> bool:
    text = " ".join(texts)
    ends = (word for word in text.split() if TERMINAL.search(word))
    sentences = sum(1 for _ in islice(ends, MIN_SENTENCES))
    return sentences == MIN_SENTENCES and len(text) >= MIN_CHARACTERS


def split_of(url: str) -> str:
    """The fixed split of a document: about one in 50 is validation."""
    digest = hashlib.sha256(url.encode()).digest()
    chosen = int.from_bytes(digest[:8], "big") % VALIDATION_SHARE == 0
    return "validation" if chosen else "train"


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """Writes gzipped JSON lines, the same bytes for the same documents; the file appears whole."""
    with (
        written_aside(path) as aside,
        aside.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as lines,
    ):
        for document in documents:
            lines.write(json.dumps(asdict(document), sort_keys=True) + "\n")
