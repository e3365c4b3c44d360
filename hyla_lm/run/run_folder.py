"""A run's folder: config.gin, metrics.jsonl and summary.json, written whole or not at all.

A bucket has no appending, so lines and TensorBoard events are written to a local folder and
mirrored: before every checkpoint, every minute and at the end.
"""

import json
import logging
import os
import tempfile
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from etils import epath

from hyla_lm.checkpoint import saved_files
from hyla_lm.errors import UserError
from hyla_lm.logs.metric_lines import damaged, parse_object, read_lines, stays
from hyla_lm.parallel import multihost
from hyla_lm.run.bucket_lease import BucketLease
from hyla_lm.run.lock import DiskLock, FolderLock
from hyla_lm.run.mirror import Mirror
from hyla_lm.storage import (
    as_path,
    bucket_errors,
    bucket_of,
    read_whole,
    size_of,
    write_retrying,
    write_whole,
)

SET_ASIDE = "set_aside"
PROFILE = "profile"  # a file by which a person asks for a trace
EVALUATOR = "evaluator"  # what a process wrote that follows the run
PROCESS_SECONDS = ".seconds"
EVENTS = "events."
OURS = {
    "config.gin",
    "checkpoints",
    "tensorboard",
    "plugins",
    "metrics.jsonl",
    "summary.json",
    "suites",
    "documents",
    SET_ASIDE,
    PROFILE,
    EVALUATOR,
}

log = logging.getLogger(__name__)


class RunFolder:
    """The files of one run; raises UserError for a folder with other files or without write access.

    Only the lead process checks and writes; the others know the paths. It holds the folder's lock
    until `close`: another run in the folder is refused.
    """

    def __init__(self, path: str, lead: bool = True):
        scheme, separator, _ = path.partition("://")
        if separator and scheme != "gs":
            raise UserError(f"--workdir={path} must be a folder of a disk or begin with gs://.")
        self.path = as_path(path)
        self._lead = lead
        self._lock: FolderLock | None = None
        self._mirror: Mirror | None = None
        self._logs = Path(self.path)
        self._opened = ExitStack()
        if lead:
            self._check(path)
            with ExitStack() as opened:
                self._open(opened)
                self._opened = opened.pop_all()

    def _open(self, opened: ExitStack) -> None:
        """Takes the lock, and in a bucket begins to mirror; `opened` closes what it opens."""
        in_bucket = bool(bucket_of(self.path))
        with self._using("written"):
            self._lock = BucketLease(self.path) if in_bucket else DiskLock(self.path)
        opened.callback(self._lock.release)
        if in_bucket:
            temporary = tempfile.TemporaryDirectory(prefix="hyla_lm-")
            self._logs = Path(opened.enter_context(temporary))
            self._mirror = Mirror(self._logs, self.path, self._lock.check)
            opened.callback(self._mirror.close)

    def _check(self, path: str) -> None:
        with self._using("used"):
            self.path.mkdir(parents=True, exist_ok=True)
            entries = self.path.iterdir() if self.path.exists() else ()
            names = {entry.name for entry in entries}
        if not bucket_of(path) and not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError(f"--workdir={path} is not writable: give another folder.")
        strange = sorted(
            name for name in names - OURS if not name.startswith((".", "hang.", EVENTS))
        )
        if strange and not names & OURS:
            raise UserError(
                f"--workdir={path} holds {strange[0]!r} and no run: give an empty or new folder."
            )

    @property
    def checkpoints(self) -> epath.Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Where files are written that grow: this folder, or one that is mirrored to it."""
        return self._logs

    @property
    def traces(self) -> epath.Path:
        """Where TensorBoard looks for traces: beside the events. Every process writes its own."""
        return self.path / "plugins" / "profile"

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file, whole or not at all; only the lead process does."""
        if self._lock is not None:
            self._lock.check()
            place = self.path / name
            if not bucket_of(place):
                with self._using("written"):
                    place.parent.mkdir(exist_ok=True)
            write_retrying(place, content.encode() if isinstance(content, str) else content)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self.write("summary.json", json.dumps(summary, indent=1) + "\n")

    def take(self, name: str) -> bytes | None:
        """The content of a file that a person put here, which is then removed; None without one."""
        place = self.path / name
        if size_of(place) is None:
            return None
        with self._using("written"):
            try:
                content = read_whole(place)
            except PermissionError:  # another user's: that it is there says enough
                content = b""
            place.unlink()
        return content

    def read_summary(self) -> dict[str, Any]:
        """The content of summary.json; empty if the run is not finished.

        Raises UserError for content that is no JSON object.
        """
        path = self.path / "summary.json"
        content = read_whole(path)
        return {} if content is None else parse_object(content, f"{path}")

    def note_saved(self, step: int, kept: Collection[int]) -> None:
        """Notes a step that was saved whole, and the files of all checkpoints that are kept."""
        if self._lead:
            self.write(saved_files.NAME, saved_files.note(self.path, step, kept))

    def saved_step(self) -> int | None:
        """The newest step that was ever saved whole; None if none is known."""
        return saved_files.newest_noted(self.path) or self.read_summary().get("step")

    def keep_lines_until(self, step: int, redone: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Drops lines that will be written again, or that a kill cut short; returns the lines kept.

        Lines of later steps are written again, and lines of this step whose tags begin with one of
        `redone`, such as "validation/".
        """
        if not self._lead:
            return []
        kept = [line for line in read_lines(self.path) if stays(line, step, redone)]
        text = "".join(f"{json.dumps(line)}\n" for line in kept)
        write_retrying(as_path(self._logs) / "metrics.jsonl", text.encode())
        return kept

    def set_aside(self, steps: Sequence[int]) -> None:
        """Moves checkpoints and the summary to a new folder in `set_aside`; copies the lines."""
        if not steps:
            return
        place = self.path / SET_ASIDE / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        with self._using("written"):
            place.mkdir(parents=True, exist_ok=True)
            for name in ("metrics.jsonl", "summary.json"):
                if (content := read_whole(self.path / name)) is not None:
                    write_whole(place / name, content)
            (self.path / "summary.json").unlink(missing_ok=True)
            for step in steps:
                (self.checkpoints / str(step)).rename(place / str(step))
        log.info("checkpoints %s are set aside in %s", ", ".join(map(str, steps)), place)

    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; empty except in the lead process."""
        return read_lines(as_path(self._logs)) if self._lead else []

    def append_line(self, step: int, values: Mapping[str, float]) -> None:
        """Appends an object as one line, which is on disk when this returns."""
        if not self._lead:
            return
        with self._using("written"), (self._logs / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def process_seconds(self) -> float:
        """The seconds of all processes of this run so far; drops a line that a kill cut short."""
        path = self.path / PROCESS_SECONDS
        content = (read_whole(path) or b"") if self._lead else b""
        whole = content.splitlines(keepends=True)
        if whole and not whole[-1].endswith(b"\n"):
            del whole[-1]
        if content:
            write_retrying(as_path(self._logs) / PROCESS_SECONDS, b"".join(whole))
        try:
            return float(whole[-1]) if whole else 0.0
        except ValueError as error:
            raise damaged(f"{path}", "no seconds") from error

    def note_process_seconds(self, seconds: float) -> None:
        """Appends a line, since only files that grow are mirrored."""
        if self._lead:
            with self._using("written"), (self._logs / PROCESS_SECONDS).open("a") as file:
                file.write(f"{seconds:.3f}\n")

    def check(self) -> None:
        """Raises UserError if the lock was lost, or logs could not be mirrored."""
        if self._lock is not None:
            self._lock.check()
        if self._mirror is not None:
            self._mirror.check()

    def mirror(self) -> None:
        """Returns when the bucket, if the folder is in one, has the logs written so far."""
        self.check()
        if self._mirror is not None:
            self._mirror.copy()

    def close(self) -> None:
        """Mirrors the last logs and releases the lock."""
        self._opened.close()

    def leave_mark(self) -> str:
        """Writes a new file, which every process of the run must see; returns its name."""
        name = f".{uuid.uuid4().hex}.mark"
        if self._lead:
            with self._using("written"):
                write_whole(self.path / name, b"")
        return name

    def sees(self, mark: str) -> bool:
        return size_of(self.path / mark) is not None

    def remove_mark(self, mark: str) -> None:
        if self._lead:
            with self._using("written"):
                (self.path / mark).unlink()

    @contextmanager
    def _using(self, how: str) -> Iterator[None]:
        try:
            with bucket_errors(self.path):
                yield
        except OSError as error:
            bucket = " or bucket that exists and in which this account has storage.objectAdmin"
            raise UserError(
                f"--workdir={self.path} cannot be {how} ({error.strerror or error}): "
                f"free space or give another folder{bucket if bucket_of(self.path) else ''}."
            ) from error


def check_shared(folder: RunFolder) -> None:
    """Raises UserError in every process unless all see the file that the first one writes."""
    mark = multihost.gather(folder.leave_mark())[0]
    seeing = multihost.gather(folder.sees(mark))
    folder.remove_mark(mark)
    if not all(seeing):
        raise UserError(
            f"process {seeing.index(False)} does not see what process 0 writes to "
            f"--workdir={folder.path}: give a folder that all hosts mount, or one in a bucket."
        )
