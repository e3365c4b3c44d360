"""A run's folder: config.gin, metrics.jsonl and summary.json, written whole or not at all."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyla_lm.config import UserError

OURS = {"config.gin", "checkpoints", "tensorboard", "metrics.jsonl", "summary.json"}


class RunFolder:
    """The files of one run; raises UserError for a folder that is not ours or not writable.

    Only the lead process checks and writes; the others know the paths.
    """

    def __init__(self, path: str, lead: bool = True):
        if "://" in path:
            raise UserError(
                f"--workdir={path} is in a bucket, where runs cannot be written yet: give a folder "
                "of this machine, or one that all hosts mount."
            )
        self.path = Path(path).expanduser()
        self._lead = lead
        if lead:
            self._check(path)

    def _check(self, path: str) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            entries = {entry.name for entry in self.path.iterdir()}
        except OSError as error:
            raise UserError(f"--workdir={path} cannot be used: {error.strerror}.") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError(f"--workdir={path} is not writable: give another folder.")
        if entries and not entries & OURS:
            strange = sorted(entries)[0]
            raise UserError(
                f"--workdir={path} holds {strange!r} and no run: give an empty or new folder."
            )

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def config(self) -> Path:
        return self.path / "config.gin"

    def write(self, name: str, text: str) -> None:
        """Writes aside, then renames."""
        if not self._lead:
            return
        partial = self.path / f".{name}.partial"
        partial.write_text(text)
        partial.replace(self.path / name)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self.write("summary.json", json.dumps(summary, indent=1) + "\n")

    def keep_metrics_until(self, step: int) -> None:
        """Drops lines after a step, and one that a kill cut short."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if _is_until(line, step)]
        self.write("metrics.jsonl", "".join(f"{line}\n" for line in kept))

    def append_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One object on one line, on disk when this returns."""
        if not self._lead:
            return
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _is_until(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except ValueError:
        return False


def git_revision() -> str | None:
    """The commit of the checkout this package runs from, if it is one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
