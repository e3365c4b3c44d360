"""What a run costs beside its steps: seconds of compiling, saving and evaluating, memory, goodput.

Goodput is the share of the time of all processes that went into steps that are kept. The seconds of
those steps are saved with each checkpoint, so steps that are trained again count once. The seconds
of the processes are in a file that only grows, so they outlive the lines that a run that goes on
writes again. Those of a killed process count up to the last line it wrote.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jax

from hyla_lm.run.folder import RunFolder

SECONDS = "seconds"  # in the data of checkpoints
GB = 1e9
OWN_PAGES = Path("/proc/self/statm")


class Costs:
    """Notes what a process spends, from `begun` on; `saved` is what the checkpoint has of it."""

    def __init__(
        self,
        folder: RunFolder,
        saved: Mapping[str, float],
        begun: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._begun, self._clock = folder, begun, clock
        self._kept = saved.get("kept", 0.0)
        self._before = max(saved.get("all", 0.0), folder.process_seconds())
        self._noted: dict[str, float] = {}

    def stepped(self, seconds: float) -> None:
        """A step took so long."""
        self._kept += seconds

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Notes the seconds of the block for the next line."""
        begun = self._clock()
        yield
        self._noted[f"perf/{name}"] = self._clock() - begun

    def take(self) -> dict[str, float]:
        """What was noted since the last call, by its tags."""
        noted, self._noted = self._noted, {}
        self.keep()
        return noted

    def take_all(self) -> dict[str, float]:
        """What was noted, memory and goodput, by their tags."""
        goodput = self._kept / max(self._all, 1e-9)
        return {**self.take(), **memory(), "perf/goodput": goodput}

    def saved(self) -> dict[str, float]:
        """What a checkpoint keeps: seconds of the steps up to it, and of all processes."""
        return {"kept": self._kept, "all": self._all}

    def keep(self) -> None:
        """Writes the seconds of all processes where a killed one leaves them."""
        self._folder.note_process_seconds(self._all)

    @property
    def _all(self) -> float:
        return self._before + self._clock() - self._begun


def memory() -> dict[str, float]:
    """GB in use on the fullest device, where devices tell, and by this process on Linux."""
    told = [device.memory_stats() or {} for device in jax.local_devices()]
    names = {"bytes_in_use": "device_memory_gb", "peak_bytes_in_use": "device_memory_peak_gb"}
    found = {
        f"perf/{tag}": max(stats[name] for stats in told) / GB
        for name, tag in names.items()
        if all(name in stats for stats in told)
    }
    if OWN_PAGES.exists():
        pages = int(OWN_PAGES.read_text().split()[1])
        found["perf/host_memory_gb"] = pages * os.sysconf("SC_PAGE_SIZE") / GB
    return found
