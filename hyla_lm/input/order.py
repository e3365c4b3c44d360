"""The order of shuffled items, a function of seed and place alone."""

import zlib
from functools import lru_cache

from grain.experimental import index_shuffle

ROUNDS = 4


def shuffled(place: int, count: int, seed: int) -> int:
    """The index of the item, of `count`, at a place of an endless order.

    Every epoch of `count` places holds each item once, in an order of its own.
    """
    epoch, index = divmod(place, count)
    return index_shuffle(index, count - 1, _seed_of(epoch, seed), ROUNDS)


@lru_cache(maxsize=8)
def _seed_of(epoch: int, seed: int) -> int:
    return zlib.crc32(f"{seed} {epoch}".encode())
