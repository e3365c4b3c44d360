"""Rows to evaluate on besides the main ones: "name=folder" as a setting says it, and as opened."""

import re
from collections.abc import Sequence

from hyla_lm.errors import UserError
from hyla_lm.input.source import LanguageData, RowSet, open_rows

SETTING = "LanguageModel.validation_sets"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def check_names(entries: Sequence[str]) -> None:
    """Raises UserError for an entry that is no "name=folder", and for a name given twice."""
    names = []
    for entry in entries:
        name, _, folder = entry.partition("=")
        if not NAME.fullmatch(name) or not folder:
            raise UserError(
                f"{SETTING} has {entry!r}: write a name of letters, digits, _ and -, and a folder "
                "of rows, such as 'books=rows/books'."
            )
        if name in names:
            raise UserError(f"{SETTING} names {name!r} twice: give each set a name of its own.")
        names.append(name)


def open_named_rows(
    entries: Sequence[str], data: LanguageData, sequence_length: int, attempts: int
) -> dict[str, RowSet]:
    """The sets by name; raises UserError for rows that do not fit, or are those of the data."""
    found: dict[str, RowSet] = {}
    used = dict.fromkeys([data.train.identity(), *data.trained_on], "trained on")
    anyway = [data.validation.identity, *(rows.identity for rows in data.sets.values())]
    used |= dict.fromkeys(anyway, "evaluated on anyway")
    for entry in entries:
        name, _, folder = entry.partition("=")
        if name in data.sets:
            raise UserError(f"{SETTING} names {name!r}, a source of the data: give another name.")
        rows, _ = open_rows(folder, data.tokenizer, sequence_length, 1, attempts)
        if how := used.get(rows.identity):
            raise UserError(f"{SETTING} has {entry!r}, rows that are {how}: give others.")
        used[rows.identity] = f"those of {name!r}"
        found[name] = rows
    return found
