"""What a plan could not know: one note for each kind, with the places it stands for."""

from collections.abc import Iterator

SHOWN = 3


class Notes:
    """Kinds of notes, each with the names of its places; a place counts once for a kind."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, None]] = {}

    def add(self, kind: str, place: str) -> None:
        self._places.setdefault(kind, {})[place] = None

    def __iter__(self) -> Iterator[str]:
        """One sentence a kind: how many places, and the first of them."""
        for kind, places in self._places.items():
            names = ", ".join(list(places)[:SHOWN]) + (", ..." if len(places) > SHOWN else "")
            yield f"{kind} ({len(places)}: {names})"
