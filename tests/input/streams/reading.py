"""Documents of many lengths, streams over them, and the texts read from streams."""

from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from hyla_lm.input.source import LanguageData, Reading
from hyla_lm.input.stream import C4Stream
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from tests.conftest import sentences

LENGTH, BATCH, SHARDS = 16, 4, 4
# Documents shorter than a row, longer than several blocks of rows, empty, and not ASCII.
TEXTS = [sentences(seed, 1 + seed % 5) for seed in range(150)] + [
    "",
    "é🙂 naïve\ttext\nof lines",
    sentences(7, 150),
    *(sentences(seed, 2) for seed in range(1000, 1040)),
]
KINDS = ("json.gz", "ArrayRecord")
ONE = BatchShard(BATCH)


def source_of(folder: Path, tokenizer: str, **settings: object) -> C4Stream:
    return C4Stream(
        train=(f"{folder}/c4-train.*",),
        validation=(f"{folder}/c4-validation.*",),
        tokenizer=tokenizer,
        **settings,
    )


def opened(source: C4Stream, **reading: int) -> LanguageData:
    return source.open(LENGTH, BATCH, Reading(**reading))


def batches(
    data: LanguageData,
    count: int,
    shard: BatchShard = ONE,
    states: list[dict] | None = None,
    of: str = "tokens",
) -> tuple[np.ndarray, list[dict]]:
    """An array of the next batches, and the state after each (with that before the first)."""
    stream = data.train.stream(shard, states)
    saved, arrays = [stream.state()], []
    for batch in islice(stream, count):
        arrays.append(batch[of])
        saved.append(stream.state())
    stream.close()
    return np.stack(arrays), saved


def unpacked(tokens: np.ndarray) -> list[int]:
    """The stream of tokens that rows were cut from."""
    rows = tokens.reshape(-1, LENGTH + 1)
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    return [*rows[0, :1].tolist(), *rows[:, 1:].ravel().tolist()]


def documents_in(tokens: list[int], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Whole documents, in order; one cut at the end is left out."""
    starts = [place for place, token in enumerate(tokens) if token == tokenizer.bos]
    return [tuple(tokens[a:b]) for a, b in pairwise(starts)]


def expected_documents(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    return [(tokenizer.bos, *tokenizer.encode(text), tokenizer.eos) for text in TEXTS]
