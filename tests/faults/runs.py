"""Runs as the kills need them: started, watched, and compared with a run never stopped."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from tests import preloaded
from tests.run_lines import measured
from tests.tiny_runs import arguments

ROOT = Path(__file__).parents[2]
UNFINISHED = ".orbax-checkpoint-tmp"
logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of every restart
TIMES = ("tokens_per_second", "wall_seconds", "mfu")
LONGEST_SECONDS = 300.0


@dataclass(frozen=True)
class Command:
    """What starts a run: its gin file, bindings, and a cache of compiled programs."""

    gin_file: Path
    programs: Path
    bindings: tuple[str, ...] = ()

    def environment(self, is_cached: bool) -> dict[str, str]:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self.programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        others = {name: value for name, value in os.environ.items() if name not in cache}
        return {**others, **(cache if is_cached else {}), "PYTHONPATH": str(ROOT)}


class Running:
    """A training process; `errors` is what it writes to stderr."""

    def __init__(
        self, command: Command, workdir: Path, is_cached: bool = True, start: Sequence[str] = ()
    ):
        self.workdir, self.started = workdir, time.monotonic()
        self._errors = command.gin_file.with_name(f"{workdir.name}.errors")
        with self._errors.open("wb") as errors:
            self._process = preloaded.Popen(
                [
                    sys.executable,
                    *(start or ("-m", "hyla_lm")),
                    *arguments(command.gin_file, workdir, *command.bindings),
                ],
                env=command.environment(is_cached),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self, seconds: float = LONGEST_SECONDS) -> int:
        """The status; a process that does not end is killed, and TimeoutExpired is raised."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait()
            raise

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")


def unfinished(workdir: Path) -> list[str]:
    """Checkpoints that are being written, or were when a process was killed."""
    folder = workdir / "checkpoints"
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(name for name in names if UNFINISHED in name)


def differences(workdir: Path, whole: Path, step: int) -> list[str]:
    """What of a run is not as in a run never stopped, or cannot be read: names of its parts."""
    parts = {
        "state": partial(arrays, step=step),
        "data": partial(position, step=step),
        "metrics.jsonl": measured,
        "tensorboard": points,
        "summary.json": summary,
    }
    return [name for name, read in parts.items() if read(workdir) != read(whole)]


def arrays(workdir: Path, step: int) -> dict[str, tuple[Any, ...]]:
    """Parameters and optimizer state of a checkpoint, as bytes."""
    restored = ocp.StandardCheckpointer().restore(checkpoint(workdir, step) / "state")
    leaves, _ = jax.tree_util.tree_flatten_with_path(restored)
    assert leaves
    return {jax.tree_util.keystr(path): as_bytes(np.asarray(leaf)) for path, leaf in leaves}


def as_bytes(array: np.ndarray) -> tuple[Any, ...]:
    return str(array.dtype), array.shape, array.tobytes()


def position(workdir: Path, step: int) -> Any:
    """The position in the data and the window not yet logged."""
    return json.loads((checkpoint(workdir, step) / "data" / "metadata").read_text())


def checkpoint(workdir: Path, step: int) -> Path:
    return (workdir / "checkpoints" / str(step)).absolute()


def points(workdir: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves that TensorBoard shows, but for times."""
    events = EventAccumulator(str(workdir), {SCALARS: 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("perf/")]
    assert tags
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def summary(workdir: Path) -> Mapping[str, Any]:
    found = json.loads((workdir / "summary.json").read_text())
    return {name: value for name, value in found.items() if name not in TIMES}
