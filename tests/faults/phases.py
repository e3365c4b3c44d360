"""The phases of a training process, in a file that whoever watches the process can read."""

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

START, COMPILE, STEP = "start", "compile", "step"
EVALUATION, SAVE, COMMIT, CLOSE = "evaluation", "save", "commit", "close"
PHASES = (START, COMPILE, STEP, EVALUATION, SAVE, COMMIT, CLOSE)
RECORD = struct.Struct("<Bd")


class Begin(NamedTuple):
    """A phase began, at a time of the monotonic clock."""

    phase: str
    at: float


class PhaseWriter:
    """Appends a record when the phase changes; a record is whole or not there."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.phase = ""
        self.set(START)

    def set(self, phase: str) -> None:
        if phase != self.phase:
            self.phase = phase
            os.write(self._file, RECORD.pack(PHASES.index(phase), time.monotonic()))


def begins(path: Path) -> list[Begin]:
    """Every phase that began so far; empty while the interpreter starts."""
    content = path.read_bytes() if path.exists() else b""
    return [Begin(PHASES[index], at) for index, at in RECORD.iter_unpack(content)]


def lasting(path: Path, ended_at: float) -> dict[str, float]:
    """The mean seconds of each phase of a process that ended then."""
    found = begins(path)
    ends = [*(begin.at for begin in found[1:]), ended_at]
    seconds: dict[str, list[float]] = {}
    for begin, end in zip(found, ends, strict=True):
        seconds.setdefault(begin.phase, []).append(end - begin.at)
    return {phase: sum(times) / len(times) for phase, times in seconds.items()}
