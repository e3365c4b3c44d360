"""A data source without downloads: rows of the docstrings of installed Python.

Python is parsed, not imported. Its documents have C4's shape: gzipped JSON lines of text, timestamp
and url.
"""

import gzip
import hashlib
import io
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from hyla_lm.config.declare import configurable, setting
from hyla_lm.data.preparation import write_rows
from hyla_lm.data.prose import TERMINAL, begin_worker, read_prose
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.documents import read_texts
from hyla_lm.input.manifest import FORMAT, MANIFEST, PRODUCER
from hyla_lm.input.prepared import TOKENIZER, Rows
from hyla_lm.input.source import LanguageData, Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import as_path, storage_errors, written_aside

SPLITS = TRAIN, VALIDATION = "train", "validation"
SEED = 0
SKIPPED_FOLDERS = frozenset(
    [
        *("__pycache__", "conftest", "dist-packages", "fixtures", "hyla_lm", "idle_test"),
        *("lib2to3", "node_modules", "site-packages", "test", "test_data", "testdata", "testing"),
        *("tests", "_vendor", "vendor", "vendored", "_vendored_packages"),
    ]
)
MIN_SENTENCES = 3
MIN_CHARACTERS = 100
VALIDATION_SHARE = 50
FILES_PER_TASK = 32
SERIAL_BELOW = 200


@configurable
@dataclass(frozen=True)
class SampleCorpus:
    """Docstrings of the standard library and of installed packages; needs no download."""

    cache: str = setting(
        "~/.cache/hyla_lm", "folder that keeps the corpus, tokenizer and rows", path=True
    )
    vocab_size: int = setting(4096, "pieces of the tokenizer that is trained", minimum=512)
    sequence_length: int = setting(128, "tokens that a row predicts", minimum=1, maximum=2**20)

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        return self.prepare().open(sequence_length, batch_size, reading)

    def prepare(self) -> Rows:
        """Makes the corpus, tokenizer and rows that are missing; raises UserError.

        Every file appears whole and has the same bytes whoever makes it, so several processes may
        make them at once, and one that was killed is continued.
        """
        # Packages installed later do not change a corpus, so a run on it can always resume.
        versions = f"{PRODUCER}-python{platform.python_version()}"
        home = Path(as_path(self.cache)).absolute() / f"sample-{versions}"
        model = home / f"tokenizer-{self.vocab_size}" / TOKENIZER
        rows = home / f"rows-{self.vocab_size}-{self.sequence_length}-format{FORMAT}"
        needed = [model, *(rows / split / MANIFEST for split in SPLITS)]
        if not all(path.is_file() for path in needed):
            self._make(home / "corpus", model, rows)
        return Rows(str(rows / TRAIN), str(rows / VALIDATION), str(model))

    def _make(self, corpus: Path, model: Path, rows: Path) -> None:
        with storage_errors(f"SampleCorpus.cache: {corpus}", "written", "set it to another folder"):
            corpus.mkdir(parents=True, exist_ok=True)
        files = {split: corpus / f"{split}.json.gz" for split in SPLITS}
        if not all(path.is_file() for path in files.values()):
            documents = collect(installed_roots())
            for split, path in files.items():
                write_documents(path, [doc for doc in documents if split_of(doc.url) == split])
        texts = {split: list(read_texts(str(path))) for split, path in files.items()}
        if not model.is_file():
            train_tokenizer(texts[TRAIN], self.vocab_size, model)
        tokenizer = Tokenizer(str(model))
        for split in SPLITS:
            manifest = write_rows(
                texts[split],
                tokenizer,
                rows / split,
                split=split,
                source=f"docstrings of Python {platform.python_version()} and its packages",
                sequence_length=self.sequence_length,
                seed=SEED,
            )
            print(manifest.summary(), file=sys.stderr)


@dataclass(frozen=True)
class Document:
    """One document of a corpus; the timestamp is constant so that bytes are reproducible."""

    text: str
    url: str
    timestamp: str = "1970-01-01T00:00:00Z"


def installed_roots() -> list[Path]:
    """The folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")))


def collect(roots: Sequence[Path]) -> list[Document]:
    """A document for each module under the roots, by url: its prose without repeated paragraphs."""
    files = sorted(file for root in roots for file in _python_files(root))
    earlier: set[str] = set()
    documents = []
    prose_of_each = _read_all([path for _, path in files])
    for (url, _), prose in zip(files, prose_of_each, strict=True):
        fresh = [text for text in dict.fromkeys(prose) if text not in earlier]
        earlier.update(fresh)
        if _is_long_enough(fresh):
            documents.append(Document("\n".join(fresh), url))
    return documents


def _python_files(root: Path) -> Iterator[tuple[str, str]]:
    """Url and path of each module."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(".py") and not name.startswith(("test_", "conftest")):
                path = Path(folder, name)
                yield f"python://{path.relative_to(root).as_posix()}", str(path)


def _read_all(files: Sequence[str]) -> Iterator[list[str]]:
    if len(files) < SERIAL_BELOW:
        yield from map(read_prose, files)
        return
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), begin_worker) as pool:
        print(f"reading the docstrings of {len(files):,} files", file=sys.stderr)
        yield from pool.map(read_prose, files, chunksize=FILES_PER_TASK)


def _is_long_enough(texts: Iterable[str]) -> bool:
    text = " ".join(texts)
    sentences = sum(TERMINAL.search(word) is not None for word in text.split())
    return sentences >= MIN_SENTENCES and len(text) >= MIN_CHARACTERS


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
