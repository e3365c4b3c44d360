"""Memory of reading a mixture, and how far it runs ahead: measured beside what the docs state.

Two sources of rows of 512 tokens are written, and read as one process of a pod reads them, with the
settings for a disk and for a bucket, and with worker processes.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from hyla_lm.data.docstrings import collect, installed_roots
from hyla_lm.data.preparation import write_rows
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.mixture import RowMixture
from hyla_lm.input.prepared import Rows
from hyla_lm.input.row_stream import RowStream, Shuffled
from hyla_lm.input.rows import RowSet
from hyla_lm.input.source import Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard

LENGTH, BATCH, SHARDS = 512, 256, 64
READINGS = {"disk": Reading(1, 8), "bucket": Reading(64, 64), "two workers": Reading(1, 8, 2)}
ROW_BYTES = 4 * (LENGTH + 1) + 8
SETTLED_SECONDS = 5.0


class NotedRows:
    """Rows of nothing; each batch that is read leaves a byte in a file, from any process."""

    def __init__(self, path: str):
        self._path = path

    def __len__(self) -> int:
        return 10**6

    def read(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        with open(self._path, "ab") as file:
            file.write(b".")
        row = np.array(rows, np.int32)
        return {"tokens": np.zeros((len(row), LENGTH + 1), np.int32), "text_bytes": row, "row": row}


def batches_ahead(reading: Reading, folder: Path) -> int:
    """Batches that are read before the second is asked for."""
    path = folder / f"noted-{reading.workers}-{reading.threads}"
    path.touch()
    rows = RowSet(NotedRows(str(path)), LENGTH, "", 0, {})
    stream = RowStream(rows, BatchShard(8), None, reading, order=Shuffled(10**6))
    next(stream)
    time.sleep(SETTLED_SECONDS)
    read = path.stat().st_size
    stream.close()
    return read - 1


def resident() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth(mixture: RowMixture, reading: Reading, out: multiprocessing.Queue) -> None:
    """What opening the mixture adds to a fresh process, and what reading adds to that."""
    before = resident()
    data = mixture.open(LENGTH, BATCH, reading)
    opened = resident()
    stream = data.train.stream(BatchShard(BATCH), None)
    most = 0
    for _ in range(3 * reading.ahead):
        next(stream)
        most = max(most, resident())
    time.sleep(1)
    out.put((opened - before, max(most, resident()) - opened))
    stream.close()


def sources(folder: Path) -> RowMixture:
    texts = [document.text for document in collect(installed_roots())]
    train_tokenizer(texts[:3000], 4096, folder / "tokenizer.model")
    tokenizer = Tokenizer(str(folder / "tokenizer.model"))
    rows = []
    for name, part in (("web", texts[::2]), ("books", texts[1::2])):
        home = folder / name
        for split, shards in (("train", SHARDS), ("validation", 1)):
            taken = part if split == "train" else part[:50]
            described = {"split": split, "source": name, "sequence_length": LENGTH, "seed": 0}
            write_rows(taken, tokenizer, home / split, shards=shards, **described)
        folders = (str(home / "train"), str(home / "validation"))
        rows.append(Rows(*folders, tokenizer.path, verify="off"))
    return RowMixture(tuple(rows), ("web", "books"), (0.7, 0.3))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mixture = sources(folder)
        fresh = multiprocessing.get_context("spawn")
        print(
            f"{BATCH} rows of {LENGTH} tokens a process: {BATCH * ROW_BYTES / 1e6:.2f} MB a batch"
        )
        for label, reading in READINGS.items():
            out = fresh.Queue()
            process = fresh.Process(target=growth, args=(mixture, reading, out))
            process.start()
            opened, read = out.get()
            process.join()
            ahead = batches_ahead(reading, folder)
            print(
                f"{label:12} {ahead:3} batches ahead, {ahead * BATCH * ROW_BYTES / 1e6:6.1f} MB; "
                f"measured {read / 1e6:6.1f} MB, after {opened / 1e6:.1f} MB to open "
                f"{2 * SHARDS} shards and the tokenizer"
            )


if __name__ == "__main__":
    main()
