"""Baselines of a text in bits per UTF-8 byte: compressors and a token bigram."""

import gzip
import lzma
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hyla_lm.input.manifest import Manifest, read_manifest
from hyla_lm.input.rows import RowReader
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import PathLike, as_path

ROWS_PER_CHUNK = 8192


def compressor_bits_per_byte(documents: Iterable[str]) -> dict[str, float]:
    """Bits per byte of the documents, joined by newlines, under `gzip -9` and `xz -9`."""
    texts = [document.encode() for document in documents]
    joined, size = b"\n".join(texts), sum(map(len, texts))
    return {
        "gzip -9": 8 * len(gzip.compress(joined, 9, mtime=0)) / size,
        "xz -9": 8 * len(lzma.compress(joined, preset=9)) / size,
    }


def baselines(
    home: PathLike, validation: Manifest, tokenizer: Tokenizer, texts: Iterable[str]
) -> dict[str, float]:
    """Bits per byte of the rows in `home`/validation, under those in `home`/train, and of texts."""
    folder = as_path(home)
    train = RowReader(folder / "train", read_manifest(folder / "train"))
    rows = RowReader(folder / "validation", validation)
    bigram = bigram_bits_per_byte(train, rows, validation, tokenizer.bos)
    return {"token bigram": bigram, **compressor_bits_per_byte(texts)}


@dataclass(frozen=True)
class Bigram:
    """Interpolated Kneser-Ney bigrams: for a token b after a token a,

    p(b|a) = max(c(ab) - d, 0) / c(a.) + d n(a.) / c(a.) * q(b), or q(b) where c(a.) = 0,
    q(b)   = (n(.b) + 1) / (n(..) + V),

    where c counts pairs, n counts distinct pairs, and d = n1 / (n1 + 2 n2) from the number of
    pairs seen once and twice. `codes` are the distinct pairs, a V + b, sorted; counts fit them.
    """

    vocab_size: int
    codes: np.ndarray
    counts: np.ndarray

    @property
    def discount(self) -> float:
        once, twice = np.sum(self.counts == 1), np.sum(self.counts == 2)
        return float(once / (once + 2 * twice)) if once else 0.5

    def probability(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        """p(following | previous) of token ids of equal shape."""
        before, after = np.divmod(self.codes, self.vocab_size)
        totals = np.bincount(before, self.counts, self.vocab_size)[previous]
        kinds = np.bincount(before, minlength=self.vocab_size)[previous]
        ends = np.bincount(after, minlength=self.vocab_size)[following]
        lower = (ends + 1) / (len(self.codes) + self.vocab_size)
        reserved = np.where(totals > 0, self.discount * kinds, 1.0)
        kept = np.maximum(self._count(previous, following) - self.discount, 0.0)
        return (kept + reserved * lower) / np.where(totals > 0, totals, 1.0)

    def _count(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        wanted = previous.astype(np.int64) * self.vocab_size + following
        where = np.minimum(np.searchsorted(self.codes, wanted), len(self.codes) - 1)
        return np.where(self.codes[where] == wanted, self.counts[where], 0)


def count_bigrams(rows: RowReader, vocab_size: int, bos: int) -> Bigram:
    """Counts the pairs of all rows whose second token is a target with weight, so not BOS."""
    codes, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for previous, following in _pairs(rows, bos):
        new_codes, new_counts = np.unique(
            previous.astype(np.int64) * vocab_size + following, return_counts=True
        )
        codes, place = np.unique(np.concatenate([codes, new_codes]), return_inverse=True)
        merged = np.bincount(place, np.concatenate([counts, new_counts]))
        counts = merged.astype(np.int64)
    return Bigram(vocab_size, codes, counts)


def bigram_bits_per_byte(
    train: RowReader, validation: RowReader, manifest: Manifest, bos: int
) -> float:
    """Bits per byte of the validation rows, described by `manifest`, under training bigrams."""
    bigram = count_bigrams(train, manifest.vocab_size, bos)
    nats = -sum(float(np.log(bigram.probability(*pair)).sum()) for pair in _pairs(validation, bos))
    return nats / math.log(2) / manifest.text_bytes


def _pairs(rows: RowReader, bos: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Neighbouring tokens (previous, following) of chunks of rows, without BOS targets."""
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = range(start, min(start + ROWS_PER_CHUNK, len(rows)))
        tokens = rows.read(chunk)["tokens"]
        previous, following = tokens[:, :-1], tokens[:, 1:]
        weighed = following != bos
        yield previous[weighed], following[weighed]
