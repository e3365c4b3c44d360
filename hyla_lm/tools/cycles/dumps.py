"""The folder to which libtpu writes what it compiled: programs, and how full each unit is."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from hyla_lm.tools.cycles.bundles import run

PROGRAM = "packed-bundles-post-ra"
UNITS = "pre-delay_hlo-static-per-bundle-utilization"


class Dumps:
    """The programs that libtpu wrote to a folder, by the name of their HLO instruction.

    The compiler writes equal code once, with a map of the instructions that share it.
    """

    def __init__(self, folder: Path):
        self._programs = {name: path for name, path in _named(folder, PROGRAM)}
        self._units = {name: path for name, path in _named(folder, UNITS)}
        self._counts: dict[tuple[Path, str], list[int]] = {}
        for path in folder.glob("*deduplication-map.txt"):
            for block in path.read_text().split("key:")[1:]:
                first, *rest = block.splitlines()
                for twin in (line.strip() for line in rest if line.startswith("  ")):
                    for named in (self._programs, self._units):
                        if first in named:
                            named.setdefault(twin, named[first])

    def counts(self, name: str, scalars: Mapping[int, int] | None = None) -> list[int] | None:
        """How often each bundle is issued; None without a program or if control depends on data."""
        path = self._programs.get(name)
        if path is None:
            return None
        key = path, repr(scalars)
        if key not in self._counts:
            try:
                self._counts[key] = run(path, scalars)
            except ValueError:
                self._counts[key] = []
        return self._counts[key] or None

    def cycles(self, name: str, scalars: Mapping[int, int] | None = None) -> int | None:
        """Bundles issued in one run of an instruction."""
        counts = self.counts(name, scalars)
        return None if counts is None else sum(counts)

    def utilisation(self, name: str) -> dict[str, float]:
        """The share of each unit's slots in use; empty if it is not known."""
        counts, units = self.counts(name), self._units.get(name)
        return {} if counts is None or units is None else utilisation(units, counts)


def utilisation(path: Path, counts: list[int]) -> dict[str, float]:
    """The share of each unit's slots that the issued bundles use."""
    lines = path.read_text().splitlines()
    names = [name.strip() for name in lines[1].split(",")]
    capacities = [int(number) for number in lines[2].split()]
    used: Counter[str] = Counter()
    for count, line in zip(counts, lines[4:], strict=False):
        for name, number in zip(names, line.split(), strict=True):
            used[name] += count * int(number)
    cycles = sum(counts)
    return {
        name: used[name] / (capacity * cycles)
        for name, capacity in zip(names, capacities, strict=True)
    }


def _named(folder: Path, label: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob(f"*-{label}.txt")):
        if match := re.fullmatch(rf"\d+-(.+?)-\d+-{label}\.txt", path.name):
            yield match[1], path
