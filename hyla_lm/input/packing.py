"""From documents to rows: BOS, ids, EOS back to back, cut into windows of T+1 with stride T.

Prepared rows and streams are both packed here, so they have the same tokens and bytes. The way back
is here too: what was summed over the targets of rows, for each document.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.tokenizer import Tokenizer

CONTINUED = -1  # the place of a document that began in an earlier row


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
    if not ids:
        raise UserError("a split of the data holds no document: give files with text.")
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
        window_nxT1 = np.arange(count)[:, None] * length + np.arange(length + 1)
        return Packed(tokens[window_nxT1], row_bytes, starts)

    def last(self) -> Packed:
        """The rest as a row filled up with BOS, a target without weight; no row without a rest."""
        count, missing = int(len(self._rest) > 1), self._length + 1 - len(self._rest)
        row = np.pad(self._rest, (0, missing), constant_values=self._bos)
        text_bytes = np.array([self._rest_bytes])
        return Packed(row[None][:count], text_bytes[:count], np.zeros(count + 1))


@dataclass(frozen=True)
class Documents:
    """Documents of packed rows, or parts of them: sums over their targets, and where they begin.

    A document begins at a BOS among the inputs of a row, and may continue in the rows that follow.

    `row_N` is the row in which one begins and `place_N` its BOS among the row's inputs, or
    CONTINUED where it began in an earlier row. `bytes_N` share the bytes of each row's text by the
    length of pieces, so they add up to the text, and are exact for a document that fills its rows.
    """

    row_N: np.ndarray
    place_N: np.ndarray
    nats_N: np.ndarray
    tokens_N: np.ndarray
    bytes_N: np.ndarray

    def __len__(self) -> int:
        return len(self.row_N)

    def take(self, chosen: np.ndarray) -> "Documents":
        """Some of them, by index or mask."""
        return Documents(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def as_lists(self) -> list[list[float]]:
        """The columns as JSON."""
        return [getattr(self, field.name).tolist() for field in fields(self)]


def parts_of_rows(
    tokens_BxT1: np.ndarray,
    text_bytes_B: np.ndarray,
    row_B: np.ndarray,
    nats_BxT: np.ndarray,
    piece_bytes_V: np.ndarray,
    bos: int,
) -> Documents:
    """The parts of documents in each row; rows numbered -1 are padding and have none."""
    input_BxT, target_BxT = tokens_BxT1[:, :-1], tokens_BxT1[:, 1:]
    begins_BxT = input_BxT == bos
    cut_BxT = begins_BxT.copy()
    cut_BxT[:, 0] = True
    starts_P = np.flatnonzero(cut_BxT)

    def summed(values_BxT: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values_BxT.ravel(), starts_P)

    of_row_P, place_P = np.divmod(starts_P, input_BxT.shape[1])
    tokens_P = summed((target_BxT != bos).astype(np.int64))
    weight_P = summed(piece_bytes_V.take(target_BxT).astype(np.int64))
    parts = Documents(
        row_B[of_row_P].astype(np.int64),
        np.where(begins_BxT.ravel()[starts_P], place_P, CONTINUED),
        summed(nats_BxT.astype(np.float64)),
        tokens_P,
        _shared(text_bytes_B, of_row_P, weight_P, tokens_P),
    )
    return parts.take((tokens_P > 0) & (parts.row_N >= 0))


def _shared(
    text_bytes_B: np.ndarray, of_row_P: np.ndarray, weight_P: np.ndarray, tokens_P: np.ndarray
) -> np.ndarray:
    """The bytes of each row by the weight of its parts, or by tokens where all weigh nothing."""
    rows = len(text_bytes_B)
    total_B = np.bincount(of_row_P, weight_P, rows)
    tokens_B = np.bincount(of_row_P, tokens_P, rows)
    by_weight = total_B[of_row_P] > 0
    share_P = np.where(by_weight, weight_P, tokens_P)
    whole_P = np.where(by_weight, total_B[of_row_P], np.maximum(tokens_B[of_row_P], 1))
    return text_bytes_B[of_row_P] * (share_P / whole_P)


def concatenated(parts: Sequence[Documents]) -> Documents:
    """One after the other."""
    columns = ([getattr(part, field.name) for part in parts] for field in fields(Documents))
    return Documents(*map(np.concatenate, columns))


def joined(parts: Sequence[Documents]) -> Documents:
    """Whole documents in the order of rows, from the parts of rows, which come in any order.

    A document that began before the first row, or of which a row is missing, counts as the parts
    that are there.
    """
    every = concatenated(parts)
    every = every.take(np.argsort(every.row_N, kind="stable"))
    follows = np.diff(every.row_N, prepend=-2) <= 1
    starts = np.flatnonzero((every.place_N != CONTINUED) | ~follows)

    def summed(values_P: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values_P, starts) if len(starts) else values_P

    return Documents(
        every.row_N[starts],
        every.place_N[starts],
        summed(every.nats_N),
        summed(every.tokens_N),
        summed(every.bytes_N),
    )
