"""Makes the corpus of docs/records.md from docs/records/packages.txt, and its rows.

    python -m docs.studies.records_corpus --output=runs/records

pip downloads wheels with the hashes that are listed; nothing of them is run or installed. Their
docstrings are the documents. The hash of all documents is compared with the committed one.
"""

import argparse
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hyla_lm import ending
from hyla_lm.data.sample_corpus import Document, collect, write_documents
from hyla_lm.errors import UserError

FOLDER = Path(__file__).parents[1] / "records"
PACKAGES, COMMITTED = FOLDER / "packages.txt", FOLDER / "corpus.sha256"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")
# Wheels of one platform for everyone: pip then takes the listed files on any machine.
WHEELS = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "--implementation=cp"]
ROWS = ["--vocab_size=2048", "--sequence_length=128", "--validation_fraction=0.01"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes corpus and rows and returns a status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser("records_corpus", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of text and rows")
    output = parser.parse_args(arguments).output
    return ending.run("records_corpus", lambda: make(output))


def make(output: Path) -> None:
    """Downloads, writes documents.json.gz and the folder rows; raises UserError for other text."""
    download(output / "wheels")
    documents = collect([unpacked(wheel, output / "code") for wheel in wheels(output)])
    found = digest(document.text for document in documents)
    size = sum(len(document.text.encode()) for document in documents)
    print(f"{len(documents):,} documents, {size / 1e6:.2f} MB, SHA-256 {found}")
    check(found)
    write(output, documents)


def download(folder: Path) -> None:
    """Downloads the listed wheels; pip refuses one whose hash is another."""
    platforms = [f"--platform={name}" for name in PLATFORMS]
    files = ["--require-hashes", f"--requirement={PACKAGES}", f"--dest={folder}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *WHEELS, *platforms, *files]
    if subprocess.run(command).returncode:
        raise UserError("pip could not download the packages: see its lines above.")


def wheels(output: Path) -> list[Path]:
    return sorted((output / "wheels").glob("*.whl"))


def unpacked(wheel: Path, folder: Path) -> Path:
    """The folder with the Python files of a wheel."""
    root = folder / wheel.name.partition("-")[0]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root, [name for name in archive.namelist() if name.endswith(".py")])
    return root


def digest(texts: Iterable[str]) -> str:
    """The SHA-256 of the sorted SHA-256 of all texts, a line each."""
    each = sorted(hashlib.sha256(text.encode()).hexdigest() for text in texts)
    return hashlib.sha256("\n".join(each).encode()).hexdigest()


def check(found: str) -> None:
    """Raises UserError if the documents are not those of the committed results."""
    committed = COMMITTED.read_text().strip()
    if found != committed:
        raise UserError(
            f"the documents have SHA-256 {found} and {COMMITTED.name} says {committed}: use the "
            "Python and the revision that docs/records.md names."
        )


def write(output: Path, documents: Sequence[Document]) -> None:
    """Writes the documents, and the tokenizer and rows made of them."""
    path = output / "documents.json.gz"
    write_documents(path, documents)
    command = [sys.executable, "-m", "hyla_lm", "data", "prepare", f"--input={path}", *ROWS]
    command += [f"--output={output / 'rows'}", "--train_tokenizer"]
    if subprocess.run(command).returncode:
        raise UserError("hyla-lm data prepare failed: see its lines above.")


if __name__ == "__main__":
    ending.process(main)
