"""A data source without downloads: rows of the docstrings of installed Python."""

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

import hyla_lm
from hyla_lm.config import gin_files
from hyla_lm.config.declare import configurable, setting
from hyla_lm.data.baselines import baselines
from hyla_lm.data.corpus import corpus_file, split_of, write_documents
from hyla_lm.data.docstrings import collect, installed_roots
from hyla_lm.data.prepare import summary
from hyla_lm.data.row_writer import write_rows
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.errors import UserError
from hyla_lm.input.documents import read_texts
from hyla_lm.input.manifest import FORMAT, MANIFEST, read_manifest, write_manifest
from hyla_lm.input.prepared import Rows
from hyla_lm.input.rows import RowReader
from hyla_lm.input.source import LanguageData, Reading
from hyla_lm.input.tokenizer import Tokenizer

HELP = "make the sample corpus and print its folders"
SPLITS = ("train", "validation")
MODEL = "tokenizer.model"
SEED = 0


@configurable
@dataclass(frozen=True)
class SampleCorpus:
    """Docstrings of the standard library and of installed packages; needs no download."""

    cache: str = setting("~/.cache/hyla_lm", "folder that keeps the corpus, tokenizer and rows")
    vocab_size: int = setting(4096, "pieces of the tokenizer that is trained", minimum=512)
    sequence_length: int = setting(128, "tokens that a row predicts", minimum=1)

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        return self.prepare().open(sequence_length, batch_size, reading)

    def prepare(self) -> Rows:
        """Builds the corpus, tokenizer and rows that are missing; raises UserError."""
        home = Path(self.cache).expanduser().absolute() / f"sample-{environment_key()}"
        tokenizer = home / f"tokenizer-{self.vocab_size}" / MODEL
        rows = home / f"rows-{self.vocab_size}-{self.sequence_length}-format{FORMAT}"
        corpus = home / "corpus"
        manifests = [Path(split) / MANIFEST for split in SPLITS]
        files = [corpus_file(Path(), split) for split in SPLITS]
        if not _is_whole(rows, manifests) or not tokenizer.is_file():
            build_folder(corpus, files, write_corpus)
            build_folder(tokenizer.parent, [Path(MODEL)], self._tokenizer_builder(corpus))
            build_folder(rows, manifests, self._rows_builder(corpus, Tokenizer(str(tokenizer))))
        return Rows(
            train=str(rows / "train"),
            validation=str(rows / "validation"),
            tokenizer=str(tokenizer),
        )

    def _tokenizer_builder(self, corpus: Path) -> Callable[[Path], None]:
        def build(folder: Path) -> None:
            texts = read_texts(str(corpus_file(corpus, "train")))
            train_tokenizer(texts, self.vocab_size, folder / MODEL)

        return build

    def _rows_builder(self, corpus: Path, tokenizer: Tokenizer) -> Callable[[Path], None]:
        def build(folder: Path) -> None:
            write_splits(corpus, tokenizer, folder, self.sequence_length)

        return build


def environment_key() -> str:
    """The name of the corpus, from the versions of this package and of Python.

    Packages installed later do not change a corpus, so a run on it can always go on; delete its
    folder to make it anew.
    """
    return f"{hyla_lm.__version__}-python{platform.python_version()}"


def build_folder(folder: Path, files: Sequence[Path], build: Callable[[Path], None]) -> None:
    """Builds a folder aside and renames it; a folder that another process finished first stays."""
    if _is_whole(folder, files):
        return
    started = time.monotonic()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as aside:
            built = Path(aside, folder.name)
            built.mkdir()
            build(built)
            _move(built, folder, files)
    except OSError as error:
        raise UserError(
            f"SampleCorpus.cache: {folder} cannot be written ({error.strerror or error}): "
            "set it to another folder."
        ) from error
    _say(f"{folder.name} made in {time.monotonic() - started:.1f} s")


def write_corpus(folder: Path, roots: Sequence[Path] | None = None) -> None:
    """Writes the docstrings under the roots, those of this Python by default, in two splits."""
    collection = collect(installed_roots() if roots is None else roots)
    for split in SPLITS:
        chosen = [doc for doc in collection.documents if split_of(doc.url) == split]
        write_documents(corpus_file(folder, split), chosen)
    size = sum(len(document.text.encode()) for document in collection.documents)
    _say(
        f"{len(collection.documents):,} documents, {size / 1e6:.2f} MB of text from "
        f"{collection.files:,} modules ({collection.unreadable:,} did not parse, "
        f"{collection.repeated_paragraphs:,} repeated paragraphs left out)"
    )


def write_splits(corpus: Path, tokenizer: Tokenizer, folder: Path, sequence_length: int) -> None:
    """Writes the rows of both splits; the validation manifest gets the baselines."""
    manifests = {}
    for split in SPLITS:
        manifests[split] = write_rows(
            read_texts(str(corpus_file(corpus, split))),
            tokenizer,
            folder / split,
            split=split,
            source=f"docstrings of Python {platform.python_version()} and its packages",
            sequence_length=sequence_length,
            seed=SEED,
        )
        _say(summary(manifests[split]))
    train, validation = (RowReader(folder / split, manifests[split]) for split in SPLITS)
    texts = read_texts(str(corpus_file(corpus, "validation")))
    figures = baselines(train, validation, manifests["validation"], tokenizer, texts)
    write_manifest(
        folder / "validation",
        replace(manifests["validation"], baselines_bits_per_byte=figures),
    )
    _say(", ".join(f"{name} {bits:.3f}" for name, bits in figures.items()) + " bits per byte")


def _is_whole(folder: Path, files: Sequence[Path]) -> bool:
    return all((folder / file).is_file() for file in files)


def _move(built: Path, folder: Path, files: Sequence[Path]) -> None:
    try:
        built.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise
        if not _is_whole(folder, files):
            raise UserError(f"{folder} lacks files: delete that folder to make it anew.") from error


def _say(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = SampleCorpus()
    parser.add_argument("--cache", default=defaults.cache)
    parser.add_argument("--vocab_size", type=int, default=defaults.vocab_size)
    parser.add_argument("--sequence_length", type=int, default=defaults.sequence_length)


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    gin_files.read([], bindings)  # refuses bindings: the options say all
    rows = SampleCorpus(options.cache, options.vocab_size, options.sequence_length).prepare()
    _say(summary(read_manifest(rows.validation)))
    for path in (rows.train, rows.validation, rows.tokenizer):
        print(path)
