"""Errors that a user can mend: one sentence each, and the exit status of a command."""

import difflib
from collections.abc import Iterable

LIKENESS = 0.7


class UserError(Exception):
    """A mistake the user can mend: one sentence that names the setting or file to change."""


class Unavailable(UserError):
    """A service failed in all tries; the same command may succeed later."""


def exit_status(error: UserError) -> int:
    """The exit status: 2, or EX_UNAVAILABLE (69) if the same command may succeed later."""
    return 69 if isinstance(error, Unavailable) else 2


def printable(text: str) -> str:
    """Text for a line of a sentence: characters that do not print are written as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name most like a word, without regard to case; empty if none is near."""
    names: dict[str, str] = {}
    for name in known:
        names.setdefault(name.lower(), name)
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=LIKENESS)
    return names[found[0]] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that asks for the nearest name; empty if none is near."""
    name = nearest(word, known)
    return f"; did you mean {name}?" if name else ""
