"""Several folders of prepared rows as one data source, mixed by weight."""

import hashlib
import heapq
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, count
from typing import NamedTuple

import numpy as np

from hyla_lm.config.declare import check_given, configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import RowData, Rows, RowText
from hyla_lm.input.row_stream import Shuffled
from hyla_lm.input.rows import RowBatch, RowSet, RowTable
from hyla_lm.input.source import NAME, LanguageData, Reading

SHOWN_HASH = 16


@configurable
@dataclass(frozen=True)
class RowMixture:
    """Folders of prepared rows, mixed row by row in set shares: read and resumed as one folder is.

    Each source goes through its own shuffled epochs, and begins another when one is over. Its
    validation rows are a validation set of its name; all of them together are the main one.
    """

    rows: tuple[Rows, ...] = setting((), "the folders, such as (@web/Rows(), @books/Rows())")
    names: tuple[str, ...] = setting((), "a name for each, such as ('web', 'books')")
    weights: tuple[float, ...] = setting(
        (),
        "the share of each in the rows trained on, such as (0.7, 0.3); they may have any sum",
        above=0,
    )

    def check(self) -> None:
        counts = len(self.rows), len(self.names), len(self.weights)
        if len(set(counts)) > 1:
            raise UserError(
                "RowMixture has {} rows, {} names and {} weights: give one of each for every "
                "source.".format(*counts)
            )
        for name in self.names:
            if not NAME.fullmatch(name) or self.names.count(name) > 1:
                raise UserError(
                    f"RowMixture.names has {name!r}: give each source a different name, of "
                    "letters, digits, _ and -."
                )

    @property
    def tokenizer(self) -> str:
        """The file that the first source names; that of the others must be equal."""
        return self.rows[0].tokenizer if self.rows else ""

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        check_given(self, "rows", "names", "weights")
        opened = {  # each may have fewer rows than a batch
            name: rows.open(sequence_length, 1, reading)
            for name, rows in zip(self.names, self.rows, strict=True)
        }
        _check_alike(opened)
        sets = {name: one.validation for name, one in opened.items()}
        parts = {name: one.train for name, one in opened.items()}
        tokenizer = opened[self.names[0]].tokenizer
        identities = " ".join(rows.identity for rows in sets.values())
        identity = hashlib.sha256(identities.encode()).hexdigest()
        held_out = _together(SpreadRows, list(sets.values()), identity)
        text = self._text(parts, reading)
        return LanguageData(tokenizer, text, held_out, sets)

    def _text(self, parts: dict[str, RowText], reading: Reading) -> RowText:
        shares = dict(zip(self.names, shares_of(self.weights), strict=True))
        # Share, name and hash of each source: all that the order of rows depends on.
        identity = " + ".join(
            f"{share} {name} {parts[name].identity()[:SHOWN_HASH]}"
            for name, share in shares.items()
        )
        counts = tuple(len(part.rows.rows) for part in parts.values())
        described = ", ".join(
            f"{name} {float(share):.2%} (has {rows:,})"
            for (name, share), rows in zip(shares.items(), counts, strict=True)
        )
        rows = _together(JoinedRows, [part.rows for part in parts.values()], identity)
        identities = tuple(part.identity() for part in parts.values())
        order = Mixed(turns_of(list(shares.values())), counts, identities)
        hashes = {path: sha256 for p in parts.values() for path, sha256 in p.hashes.items()}
        return RowText(rows, order, described, reading, hashes)


def _check_alike(opened: Mapping[str, RowData]) -> None:
    """Raises UserError unless all sources have one tokenizer and rows of their own."""
    first, *others = opened.values()
    for one in others:
        if one.tokenizer.sha256 != first.tokenizer.sha256:
            raise UserError(
                f"RowMixture: {one.tokenizer.path} is another tokenizer than "
                f"{first.tokenizer.path}: prepare the rows of all sources with one."
            )
    if len({one.train.identity() for one in opened.values()}) < len(opened):
        raise UserError(
            "RowMixture: Rows.train of two sources hold the same rows: give each source rows of "
            "its own; a weight says how often they are read."
        )


def _together(
    table: Callable[[list[RowTable]], RowTable], sets: Sequence[RowSet], identity: str
) -> RowSet:
    rows, text_bytes = table([one.rows for one in sets]), sum(one.text_bytes for one in sets)
    return RowSet(rows, sets[0].sequence_length, identity, text_bytes)


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


@dataclass(frozen=True)
class Mixed:
    """The order of rows of several sources by turns, each shuffled through its own epochs.

    Rows are numbered on from source to source: `counts` are the rows of each. `identities` give
    sources different orders, also where they hold as many rows.
    """

    turns: Turns
    counts: tuple[int, ...]
    identities: tuple[str, ...]

    def __call__(self, place: int, seed: int) -> int:
        source, turn = self.turns.at(place)
        own_seed = zlib.crc32(f"{seed} {self.identities[source]}".encode())
        return sum(self.counts[:source]) + Shuffled(self.counts[source])(turn, own_seed)


class JoinedRows:
    """One table after the other. Row r of a table is row r + the rows of all tables before it."""

    def __init__(self, tables: Sequence[RowTable]):
        self._tables = tuple(tables)
        *self.starts, self._count = accumulate(map(len, self._tables), initial=0)

    def __len__(self) -> int:
        return self._count

    def read(self, rows: Sequence[int]) -> RowBatch:
        """Rows as arrays: tokens (n x T+1), text_bytes (n) and row (n), all int32."""
        row_N = np.array(rows, np.int64)
        table_N = np.searchsorted(self.starts, row_N, side="right") - 1
        parts = []
        for number, (table, start) in enumerate(zip(self._tables, self.starts, strict=True)):
            batch = table.read((row_N[table_N == number] - start).tolist())
            parts.append({**batch, "row": batch["row"] + np.int32(start)})
        as_asked = np.argsort(np.argsort(table_N, kind="stable"))
        return {name: np.concatenate([part[name] for part in parts])[as_asked] for name in parts[0]}


class SpreadRows:
    """Every row of several tables once, in an order whose every prefix has a fair part of each.

    Rows of a table keep their order, and are numbered as in JoinedRows.
    """

    def __init__(self, tables: Sequence[RowTable]):
        self._rows, self._turns = JoinedRows(tables), Turns(tuple(map(len, tables)))

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: Sequence[int]) -> RowBatch:
        """The rows at these places of the order."""
        turns = map(self._turns.at, rows)
        return self._rows.read([self._rows.starts[table] + turn for table, turn in turns])
