"""From packed rows back to documents: what was summed over the targets of each.

A document begins at a BOS among the inputs of a row, and may go on in the rows that follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

GOES_ON = -1


@dataclass(frozen=True)
class Documents:
    """Documents, or parts of them: sums over their targets, and where they begin.

    `row_N` is the row in which one begins and `place_N` its BOS among the row's inputs, or GOES_ON
    where it began in a row before. `bytes_N` share the bytes of each row's text by the length of
    pieces, so they add up to the text, and are exact for a document that fills its rows.
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
        np.where(begins_BxT.ravel()[starts_P], place_P, GOES_ON),
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


def together(parts: Sequence[Documents]) -> Documents:
    """One after the other."""
    columns = ([getattr(part, field.name) for part in parts] for field in fields(Documents))
    return Documents(*map(np.concatenate, columns))


def joined(parts: Sequence[Documents]) -> Documents:
    """Whole documents in the order of rows, from the parts of rows, which come in any order.

    A document that began before the first row, or of which a row is missing, counts as the parts
    that are there.
    """
    every = together(parts)
    every = every.take(np.argsort(every.row_N, kind="stable"))
    follows = np.diff(every.row_N, prepend=-2) <= 1
    starts = np.flatnonzero((every.place_N != GOES_ON) | ~follows)

    def summed(values_P: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values_P, starts) if len(starts) else values_P

    return Documents(
        every.row_N[starts],
        every.place_N[starts],
        summed(every.nats_N),
        summed(every.tokens_N),
        summed(every.bytes_N),
    )
