"""Tokens a second on one core: tokenising alone, preparing rows, reading rows, streaming text.

The text is the docstrings of this Python, several times over, as C4's json.gz and ArrayRecord. Give
a SentencePiece model as an argument, or a small one is trained.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from hyla_lm.data.preparation import Preparation, prepare
from hyla_lm.data.sample_corpus import collect, installed_roots
from hyla_lm.data.text_files import TextFiles
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.manifest import read_manifest
from hyla_lm.input.row_stream import RowStream
from hyla_lm.input.source import Batches, Reading, open_rows
from hyla_lm.input.stream import C4Stream
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from tests.data.c4_layouts import write_array_records, write_json_gz

SEQUENCE_LENGTH, BATCH_SIZE = 512, 64
COPIES, SHARDS, RUNS = 3, 4, 5
READING = Reading(threads=1, ahead=8)


def tokens_per_second(measured: Callable[[], int]) -> float:
    start = time.perf_counter()
    return measured() / (time.perf_counter() - start)


def measurements(folder: Path, tokenizer: Tokenizer) -> dict[str, Callable[[], int]]:
    documents = collect(installed_roots())
    texts = [document.text for _ in range(COPIES) for document in documents]
    train = tuple(map(str, write_json_gz(texts, folder / "json", "train", SHARDS)))
    records = tuple(map(str, write_array_records(texts, folder / "records", "train", SHARDS)))
    done = iter(range(10**6))

    def tokenise() -> int:
        blocks = (texts[start : start + 256] for start in range(0, len(texts), 256))
        return sum(len(ids) for block in blocks for ids in tokenizer.encode_batch(block))

    def prepare_rows() -> int:
        output = str(folder / f"rows{next(done)}")
        source = TextFiles(train)
        request = Preparation(source, tokenizer, output, "train", SEQUENCE_LENGTH, SHARDS)
        return prepare(request).tokens

    def read_rows() -> int:
        split = open_rows(str(folder / "rows0"), tokenizer, SEQUENCE_LENGTH, BATCH_SIZE)
        stream = RowStream(split, BatchShard(BATCH_SIZE), reading=READING)
        return drained(stream, 2 * len(split.rows) // BATCH_SIZE)

    def stream(files: tuple[str, ...]) -> int:
        source = C4Stream(files, files[:1], tokenizer.path, validation_documents=1)
        data = source.open(SEQUENCE_LENGTH, BATCH_SIZE, READING)
        batches = read_manifest(folder / "rows0").rows // BATCH_SIZE
        return drained(data.train.stream(BatchShard(BATCH_SIZE), None), batches)

    return {
        "tokenise alone": tokenise,
        "prepare rows": prepare_rows,
        "read rows": read_rows,
        "stream json.gz": lambda: stream(train),
        "stream ArrayRecord": lambda: stream(records),
    }


def drained(stream: Batches, batches: int) -> int:
    """Tokens of the first batches."""
    tokens = sum(next(stream)["tokens"][:, 1:].size for _ in range(batches))
    stream.close()
    return tokens


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if len(sys.argv) > 1:
            tokenizer = Tokenizer(sys.argv[1])
        else:
            documents = collect(installed_roots())
            train_tokenizer((d.text for d in documents), 16_384, folder / "tokenizer.model")
            tokenizer = Tokenizer(str(folder / "tokenizer.model"))
        measured = measurements(folder, tokenizer)
        rates = {label: 0.0 for label in measured}
        for _ in range(RUNS):
            for label, run in measured.items():
                rates[label] = max(rates[label], tokens_per_second(run))
    alone = rates["tokenise alone"]
    print(f"one core, {tokenizer.vocab_size:,} pieces, rows of {SEQUENCE_LENGTH}")
    for label, rate in rates.items():
        print(f"{label:20} {rate / 1e6:6.2f} million tokens/s, {rate / alone:.2f} of tokenising")


if __name__ == "__main__":
    main()
