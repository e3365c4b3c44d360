"""Whose turn it is: several sources by weight, a function of the place alone."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import NamedTuple


class Fork(NamedTuple):
    """A part of the sources that is divided in two; what is no fork is a source's number."""

    weight: int
    left_weight: int
    left: "Fork | int"
    right: "Fork | int"

    def left_of(self, places: int) -> int:
        """How many of the first places are the left part's: its share, rounded."""
        return (2 * places * self.left_weight + self.weight) // (2 * self.weight)


@dataclass(frozen=True)
class Turns:
    """Endless turns of sources with whole weights, in whose every prefix each has its share.

    Of n turns in a row from the first, a source with the share s has n·s: within 1 among up to
    three sources, within 2 among any number, exactly where n is a multiple of all weights together.
    The sources are leaves of a Huffman tree. Each fork rounds the turns of its left part; what that
    is wrong by is passed on in proportion, so it does not add up.
    """

    weights: tuple[int, ...]

    def at(self, place: int) -> tuple[int, int]:
        """The source of a place, and how many turns it had before."""
        node = self._root
        while isinstance(node, Fork):
            left = node.left_of(place)
            is_left = node.left_of(place + 1) > left
            node, place = (node.left, left) if is_left else (node.right, place - left)
        return node, place

    def counts(self, places: int) -> list[int]:
        """How many of the first places are of each source."""
        found = [0] * len(self.weights)
        parts = [(self._root, places)]
        while parts:
            node, turns = parts.pop()
            if isinstance(node, Fork):
                left = node.left_of(turns)
                parts += [(node.left, left), (node.right, turns - left)]
            else:
                found[node] = turns
        return found

    @cached_property
    def _root(self) -> Fork | int:
        later = count(len(self.weights))
        heap: list[tuple[int, int, Fork | int]] = [
            (weight, source, source) for source, weight in enumerate(self.weights)
        ]
        heapq.heapify(heap)
        while len(heap) > 1:
            right_weight, _, right = heapq.heappop(heap)
            left_weight, _, left = heapq.heappop(heap)
            weight = left_weight + right_weight
            heapq.heappush(heap, (weight, next(later), Fork(weight, left_weight, left, right)))
        return heap[0][2]


def shares_of(weights: Sequence[float]) -> list[Fraction]:
    """Weights as exact shares; 0.1 is a tenth, not the float next to it."""
    exact = [Fraction(repr(weight)) for weight in weights]
    return [weight / sum(exact) for weight in exact]


def turns_of(shares: Sequence[Fraction]) -> Turns:
    """Turns by exact shares, whose whole weights are the smallest that give them."""
    whole = math.lcm(*(share.denominator for share in shares))
    return Turns(tuple(int(share * whole) for share in shares))
