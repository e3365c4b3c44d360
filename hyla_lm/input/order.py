"""The order of shuffled items, a function of seed and place alone."""

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from grain.experimental import index_shuffle

from hyla_lm.input.turns import Turns

ROUNDS = 4


class Order(Protocol):
    """An endless order of rows, picklable for worker processes."""

    def __call__(self, place: int, seed: int) -> int:
        """The number of the row at a place."""
        ...


@dataclass(frozen=True)
class Shuffled:
    """Every epoch holds each of `count` rows once, in an order of its own."""

    count: int

    def __call__(self, place: int, seed: int) -> int:
        return shuffled(place, self.count, seed)


@dataclass(frozen=True)
class Mixed:
    """Rows of several sources by turns, each shuffled through epochs of its own.

    Rows are numbered on from source to source: `counts` are the rows of each. `identities` give
    sources different orders, also where they hold as many rows.
    """

    turns: Turns
    counts: tuple[int, ...]
    identities: tuple[str, ...]

    def __call__(self, place: int, seed: int) -> int:
        source, turn = self.turns.at(place)
        own_seed = zlib.crc32(f"{seed} {self.identities[source]}".encode())
        return sum(self.counts[:source]) + shuffled(turn, self.counts[source], own_seed)


def shuffled(place: int, count: int, seed: int) -> int:
    """The index of the item, of `count`, at a place of an endless order.

    Every epoch of `count` places holds each item once, in an order of its own.
    """
    epoch, index = divmod(place, count)
    return index_shuffle(index, count - 1, _seed_of(epoch, seed), ROUNDS)


@lru_cache(maxsize=8)
def _seed_of(epoch: int, seed: int) -> int:
    return zlib.crc32(f"{seed} {epoch}".encode())
