"""Several folders of prepared rows as one data source, mixed by weight."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hyla_lm.config.declare import check_given, configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.input.joined_rows import JoinedRows, SpreadRows
from hyla_lm.input.named_rows import NAME
from hyla_lm.input.order import Mixed
from hyla_lm.input.prepared import Opened, PreparedText, Rows, verification_of
from hyla_lm.input.row_stream import RowStream, check_equal_states
from hyla_lm.input.source import LanguageData, Reading, RowSet, RowTable
from hyla_lm.input.turns import Turns, shares_of, turns_of
from hyla_lm.parallel.batch_shard import BatchShard

SHOWN_HASH = 16


@configurable
@dataclass(frozen=True)
class RowMixture:
    """Folders of prepared rows, mixed row by row in set shares: read and resumed as one folder is.

    Each source goes through shuffled epochs of its own, and begins another when one is over. Its
    validation rows are a validation set of its name; all of them together are the main one.
    """

    rows: tuple[Rows, ...] = setting((), "the folders, such as (@web/Rows(), @books/Rows())")
    names: tuple[str, ...] = setting((), "a name for each, such as ('web', 'books')")
    weights: tuple[float, ...] = setting(
        (), "the share of each in the rows trained on, such as (0.7, 0.3); they may have any sum"
    )

    def check(self) -> None:
        counts = len(self.rows), len(self.names), len(self.weights)
        if len(set(counts)) > 1:
            raise UserError(
                "RowMixture has {} rows, {} names and {} weights: give one of each for every "
                "source.".format(*counts)
            )
        if len(self.rows) == 1:
            raise UserError("RowMixture.rows has one folder: give more, or bind @Rows() itself.")
        for name in self.names:
            if not NAME.fullmatch(name):
                raise UserError(
                    f"RowMixture.names has {name!r}: write a name of letters, digits, _ and -."
                )
            if self.names.count(name) > 1:
                raise UserError(f"RowMixture.names has {name!r} twice: name each source apart.")
        for name, weight in zip(self.names, self.weights, strict=True):
            if weight <= 0:
                raise UserError(
                    f"RowMixture.weights has {weight} for {name!r}: give a number above 0, or "
                    "leave the source out."
                )

    @property
    def tokenizer(self) -> str:
        """The file that the first source names; that of the others must be equal."""
        return self.rows[0].tokenizer if self.rows else ""

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(folder for rows in self.rows for folder in rows.folders)

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        check_given(self, "rows", "names", "weights")
        opened = dict(zip(self.names, self._opened(sequence_length, reading), strict=True))
        _check_alike(opened)
        texts = {name: one.train for name, one in opened.items()}
        sets = {name: one.validation for name, one in opened.items()}
        rows = _together(JoinedRows, [text.rows for text in texts.values()])
        held_out = _together(SpreadRows, list(sets.values()))
        train = MixedText(texts, rows, self.weights, reading)
        trained_on = tuple(text.identity() for text in texts.values())
        tokenizer = opened[self.names[0]].tokenizer
        return LanguageData(tokenizer, train, held_out, sets, trained_on)

    def _opened(self, sequence_length: int, reading: Reading) -> list[Opened]:
        """The sources, of which each may have fewer rows than a batch."""
        for name, rows in zip(self.names, self.rows, strict=True):
            for field in ("train", "validation", "tokenizer"):
                if not getattr(rows, field):
                    raise UserError(
                        f"Rows.{field} of {name!r} in RowMixture.rows is not set: give it, such as "
                        f"{name}/Rows.{field} where the source is @{name}/Rows()."
                    )
        return [rows.opened(sequence_length, 1, reading) for rows in self.rows]


def _check_alike(opened: Mapping[str, Opened]) -> None:
    """Raises UserError unless all sources have one tokenizer and rows of their own."""
    names = list(opened)
    first = opened[names[0]].tokenizer
    for name, one in opened.items():
        if one.tokenizer.sha256 != first.sha256:
            raise UserError(
                f"RowMixture: the rows of {name!r} were made with {one.tokenizer.path} and those "
                f"of {names[0]!r} with {first.path}, another tokenizer: prepare all with one."
            )
    for what in ("train", "validation"):
        seen: dict[str, str] = {}
        for name, one in opened.items():
            identity = one.train.identity() if what == "train" else one.validation.identity
            other = seen.setdefault(identity, name)
            if other != name:
                raise UserError(
                    f"RowMixture: Rows.{what} of {other!r} and of {name!r} hold the same rows: "
                    "give each source rows of its own; a weight says how often they are read."
                )


def _together(table: Callable[[list[RowTable]], RowTable], sets: Sequence[RowSet]) -> RowSet:
    identity = hashlib.sha256(" ".join(one.identity for one in sets).encode()).hexdigest()
    rows, text_bytes = table([one.rows for one in sets]), sum(one.text_bytes for one in sets)
    return RowSet(rows, sets[0].sequence_length, identity, text_bytes, {})


@dataclass(frozen=True)
class MixedText:
    """The training rows of several sources by name, with the weight of each."""

    parts: Mapping[str, PreparedText]
    rows: RowSet
    weights: tuple[float, ...]
    reading: Reading

    @cached_property
    def turns(self) -> Turns:
        return turns_of(shares_of(self.weights))

    def identity(self) -> str:
        """Share, name and hash of each source: all that the order of rows depends on."""
        shares = zip(shares_of(self.weights), self.parts.items(), strict=True)
        return " + ".join(
            f"{share} {name} {part.identity()[:SHOWN_HASH]}" for share, (name, part) in shares
        )

    def summary(self) -> str:
        shares = zip(self.parts, shares_of(self.weights), strict=True)
        return "rows of " + ", ".join(f"{name} {float(share):.2%}" for name, share in shares)

    def passes(self, rows: int) -> dict[str, str]:
        """What a run of so many rows takes of each source."""
        counts = zip(self.parts.items(), self.turns.counts(rows), strict=True)
        return {
            f"data {name}": f"{taken:,} rows of this run, {taken / len(part.rows.rows):.2f} "
            f"epochs; {part.summary()}"
            for (name, part), taken in counts
        }

    def stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> RowStream:
        """Of several processes, each verifies its part of the shards."""
        state = None if states is None else check_equal_states(states)
        parts = list(self.parts.values())
        rows_read = state["rows_read"] if state else 0
        verification = verification_of(parts, shard, self.reading.attempts, rows_read)
        counts = tuple(len(part.rows.rows) for part in parts)
        order = Mixed(self.turns, counts, tuple(part.identity() for part in parts))
        return RowStream(self.rows, shard, state, self.reading, verification, order)
