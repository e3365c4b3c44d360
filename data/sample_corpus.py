"""A data source without downloads: rows of the docstrings of installed Python."""

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import hyla_lm
from hyla_lm.config.declare import configurable, setting
from hyla_lm.data.docstrings import collect, installed_roots, split_of, write_documents
from hyla_lm.data.preparation import write_rows
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.documents import read_texts
from hyla_lm.input.manifest import FORMAT, MANIFEST
from hyla_lm.input.prepared import TOKENIZER, Rows
from hyla_lm.input.source import LanguageData, Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import storage_errors

SPLITS = TRAIN, VALIDATION = "train", "validation"
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
        """Makes the corpus, tokenizer and rows that are missing; raises UserError.

        Every file appears whole and has the same bytes whoever makes it, so several processes may
        make them at once, and one that was killed is continued.
        """
        home = Path(self.cache).expanduser().absolute() / f"sample-{environment_key()}"
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
            write_corpus(files)
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


def environment_key() -> str:
    """The name of the corpus, from the versions of this package and of Python.

    Packages installed later do not change a corpus, so a run on it can always resume; delete its
    folder to make it anew.
    """
    return f"{hyla_lm.__version__}-python{platform.python_version()}"


def write_corpus(files: dict[str, Path]) -> None:
    """Writes the docstrings of this Python to a file for each split."""
    documents = collect(installed_roots())
    for split, path in files.items():
        write_documents(path, [doc for doc in documents if split_of(doc.url) == split])
    size = sum(len(document.text.encode()) for document in documents)
    print(f"{len(documents):,} documents, {size / 1e6:.2f} MB of text", file=sys.stderr)
