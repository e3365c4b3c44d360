"""From documents to rows: BOS, ids, EOS back to back, cut into windows of T+1 with stride T.

Prepared rows and streams are both packed here, so they have the same tokens and bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hyla_lm.input.tokenizer import Tokenizer


@dataclass(frozen=True)
class Block:
    """Whole documents, back to back: N tokens of D documents.

    `ends_D` is where each document ends, `bytes_D` the UTF-8 bytes of its text, and `weights_N`
    the bytes that each token's piece stands for.
    """

    tokens_N: np.ndarray
    ends_D: np.ndarray
    bytes_D: np.ndarray
    weights_N: np.ndarray

    @cached_property
    def starts_D(self) -> np.ndarray:
        return np.concatenate([[0], self.ends_D[:-1]])

    @cached_property
    def _weight_before_N1(self) -> np.ndarray:
        # In uint32, three times as fast as int64: differences stay right up to 4 GiB a document.
        sums_N = np.cumsum(self.weights_N, dtype=np.uint32)
        return np.concatenate([np.zeros(1, np.uint32), sums_N])

    @cached_property
    def _bytes_before_D(self) -> np.ndarray:
        return np.cumsum(self.bytes_D) - self.bytes_D

    def document_at(self, positions: np.ndarray) -> np.ndarray:
        """Which document holds the token at each position in [0, N)."""
        return np.searchsorted(self.ends_D, positions, side="right")

    def text_bytes_before(self, positions: np.ndarray) -> np.ndarray:
        """Text bytes before positions in [0, N].

        A document's bytes are shared out by the length of its pieces, or evenly where all are
        empty; over the whole document they add up to its size.
        """
        document = np.minimum(self.document_at(positions), len(self.ends_D) - 1)
        start, end = self.starts_D[document], self.ends_D[document]
        before = self._weight_before_N1
        weight, total = before[positions] - before[start], before[end] - before[start]
        weight = np.where(total == 0, positions - start, weight)
        total = np.where(total == 0, end - start, total)
        inside = np.rint(weight * (self.bytes_D[document] / total)).astype(np.int64)
        return self._bytes_before_D[document] + inside


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer, threads: int = 1) -> Block:
    """Tokenises texts into a block."""
    sizes = [len(text) if text.isascii() else len(text.encode()) for text in texts]
    return block_of(tokenizer.encode_batch(texts, threads), sizes, tokenizer)


def block_of(ids: Sequence[np.ndarray], sizes: Sequence[int], tokenizer: Tokenizer) -> Block:
    """The block of documents given as ids without BOS and EOS, and their text bytes."""
    bos, eos = (np.array([special], np.int32) for special in (tokenizer.bos, tokenizer.eos))
    tokens = np.concatenate([part for document in ids for part in (bos, document, eos)])
    ends = np.cumsum([len(document) + 2 for document in ids])
    return Block(tokens, ends, np.array(sizes, np.int64), tokenizer.piece_bytes.take(tokens))


@dataclass(frozen=True)
class Packed:
    """n rows: tokens (n x T+1), the text bytes of their targets (n), and where rows start.

    `starts` (n+1) are positions in the pushed block, the last one of the row that is not yet full;
    a negative position lies in an earlier block.
    """

    tokens: np.ndarray
    text_bytes: np.ndarray
    starts: np.ndarray


class Packer:
    """Cuts a stream of blocks into rows; the rest of a block waits for the next."""

    def __init__(self, sequence_length: int, tokenizer: Tokenizer):
        self._length, self._bos = sequence_length, tokenizer.bos
        self._rest = np.empty(0, np.int32)
        self._rest_bytes = 0

    def push(self, block: Block, skip: int = 0) -> Packed:
        """Adds a block from position `skip` on; returns the rows that are now full."""
        length, waiting = self._length, len(self._rest)
        tokens = np.concatenate([self._rest, block.tokens_N[skip:]])
        count = (len(tokens) - 1) // length
        starts = np.arange(count + 1) * length - waiting + skip
        borders = np.maximum(starts + 1, skip)
        before = block.text_bytes_before(np.append(borders, len(block.tokens_N)))
        row_bytes, rest_bytes = np.diff(before[:-1]), int(before[-1] - before[-2])
        if count:
            row_bytes[0] += self._rest_bytes
        else:
            rest_bytes += self._rest_bytes
        self._rest, self._rest_bytes = tokens[count * length :], rest_bytes
        return Packed(windows(tokens, count, length), row_bytes, starts)

    def last(self) -> Packed:
        """The rest as a row filled up with BOS, a target without weight; no row without a rest."""
        if len(self._rest) < 2:
            return Packed(windows(self._rest, 0, self._length), np.empty(0, np.int64), np.zeros(1))
        missing = self._length + 1 - len(self._rest)
        row = np.pad(self._rest, (0, missing), constant_values=self._bos)
        return Packed(row[None], np.array([self._rest_bytes]), np.zeros(2))


def windows(tokens: np.ndarray, count: int, length: int) -> np.ndarray:
    """The first `count` windows of T+1 tokens with stride T (a view of shape count x T+1)."""
    if count == 0:
        return np.empty((0, length + 1), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length][:count]
