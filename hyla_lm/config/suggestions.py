"""What somebody may have meant who misspelt a name."""

import difflib
from collections.abc import Iterable

LIKENESS = 0.7


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
