"""A run's folder, on a disk or in a bucket: its files, each written whole or not at all.

A bucket has no appending, so lines and TensorBoard events are written to a local folder and
mirrored: before every checkpoint, every minute and at the end.
"""

import json
import logging
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import UTC, datetime
from itertools import chain, pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from etils import epath

from hyla_lm.checkpoint.checksums import CHECKPOINTS
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import TOKENIZER
from hyla_lm.parallel import processes
from hyla_lm.run.lock import BucketLease, DiskLock
from hyla_lm.storage import (
    PathLike,
    append,
    as_path,
    bucket_of,
    exists,
    pieces,
    read_whole,
    retrying,
    size_of,
    storage_errors,
    write_whole,
    written_aside,
)

LINES, SUMMARY = "metrics.jsonl", "summary.json"
MOVED_TO = "set_aside"  # checkpoints that a run went back behind
HOME = ".home"  # the folder that relative paths of config.gin are from
PROFILE = "profile"  # a file by which a person asks for a trace
EVALUATOR = "evaluator"  # what a process wrote that follows the run
EVENTS = "events."
AFTER, UNTIL = "lost_lines/after", "lost_lines/until"  # tags of steps between which lines are gone
OURS = {
    "config.gin",
    TOKENIZER,
    CHECKPOINTS,
    "plugins",
    LINES,
    SUMMARY,
    "suites",
    "documents",
    MOVED_TO,
    PROFILE,
    EVALUATOR,
}
MIRROR_SECONDS = 60.0

log = logging.getLogger(__name__)


class RunFolder:
    """The files of one run; raises UserError for a folder with other files or without write access.

    Only process 0 `writes`; the others know the paths. It holds the folder's lock until `close`:
    another run in the folder is refused.
    """

    def __init__(self, path: str, writes: bool = True):
        scheme, separator, _ = path.partition("://")
        if separator and scheme != "gs":
            raise UserError(f"--workdir={path} must be a folder of a disk or begin with gs://.")
        self.path = as_path(path)
        self.checkpoints = self.path / CHECKPOINTS
        # Where files are written that grow: this folder, or one that is mirrored to it.
        self.logs = Path(self.path)
        self.names: set[str] = set()  # of the files when it was opened
        self.logged = 0  # bytes of the run's lines, also of those that somebody removes
        self._writes = writes
        self._lock: DiskLock | BucketLease | None = None
        self._mirror: Mirror | None = None
        self._opened = ExitStack()
        if writes:
            self._check_files()
            with ExitStack() as opened:
                self._open(opened)
                self._opened = opened.pop_all()

    def _open(self, opened: ExitStack) -> None:
        """Takes the lock, and in a bucket begins to mirror; `opened` closes what it opens."""
        in_bucket = bool(bucket_of(self.path))

        def lock() -> DiskLock | BucketLease:
            return BucketLease(self.path) if in_bucket else DiskLock(self.path)

        with self._using("written"):
            self._lock = retrying(lock, self.path, "written")
        opened.callback(self._lock.release)
        if in_bucket:
            temporary = tempfile.TemporaryDirectory(prefix="hyla_lm-")
            self.logs = Path(opened.enter_context(temporary))
            self._mirror = Mirror(self.logs, self.path, self._lock.check)
            opened.callback(self._mirror.close)

    def _check_files(self) -> None:
        def list_names() -> set[str]:
            if not exists(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            return {entry.name for entry in self.path.iterdir()} if exists(self.path) else set()

        with self._using("used"):
            self.names = retrying(list_names, self.path, "used")
        strange = sorted(name for name in self.names - OURS if not name.startswith((".", EVENTS)))
        if strange and not self.names & OURS:
            raise UserError(
                f"--workdir={self.path} holds {strange[0]!r} and no run: give an empty or new "
                "folder."
            )

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file, whole or not at all; only process 0 does."""
        if self._lock is not None:
            self._lock.check()
            content = content.encode() if isinstance(content, str) else content
            write_whole(self.path / name, content)

    def take(self, name: str) -> bytes | None:
        """The content of a file that a person put here, which is then removed; None without one."""
        content = read_whole(self.path / name)
        if content is not None:
            with self._using("written"):
                (self.path / name).unlink()
        return content

    def move_checkpoints(self, steps: Sequence[int]) -> None:
        """Moves checkpoints and the summary to a new folder in `set_aside`; copies the lines."""
        folder = self.path / MOVED_TO / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        with self._using("written"):
            folder.mkdir(parents=True, exist_ok=True)
            for name in (LINES, SUMMARY):
                if (content := read_whole(self.path / name)) is not None:
                    write_whole(folder / name, content)
            (self.path / SUMMARY).unlink(missing_ok=True)
            for step in steps:
                (self.checkpoints / str(step)).rename(folder / str(step))
        log.info("checkpoints %s are moved to %s", ", ".join(map(str, steps)), folder)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl; none except in process 0."""
        return read_lines(self.logs) if self._writes else iter(())

    def append_line(self, step: int, values: Mapping[str, float]) -> None:
        """Appends an object as one line, which is on disk when this returns."""
        if self._writes:
            line = _text([{"step": step, **values}])
            append(self.logs / LINES, line)
            self.logged += len(line)

    def keep_lines_until(
        self, step: int, redone: Sequence[str] = (), logged: int = 0
    ) -> list[dict[str, Any]]:
        """Drops lines that will be written again, or that a kill cut short; returns those of step.

        Lines of later steps are written again, and lines of this step whose tags begin with one of
        `redone`, such as "validation/". If fewer bytes of lines are left than were `logged`, it
        warns once, and adds a line that says between which steps lines are gone.
        """
        if not self._writes:
            return []

        def cut() -> list[dict[str, Any]]:
            kept, earlier, path = list[dict[str, Any]](), 0, self.path / LINES
            with written_aside(self.logs / LINES) as aside:
                with aside.open("wb") as file:
                    file.writelines(pieces(path))
                for end, line in lines_from_end(aside, f"{path}"):
                    if line["step"] < step:
                        earlier = end
                        break
                    is_redone = any(name.startswith(tuple(redone)) for name in line)
                    if line["step"] == step and not is_redone:
                        kept.insert(0, line)
                os.truncate(aside, earlier)
                with aside.open("ab") as file:
                    file.write(_text(kept))
            self.logged = earlier + len(_text(kept))
            return kept

        with self._using("written"):
            kept = retrying(cut, self.logs, "written")
        if self.logged < logged and not any(AFTER in line for line in kept):
            steps = chain([0], (line["step"] for line in self.lines()), [step])
            after, until = max(pairwise(steps), key=lambda ends: (ends[1] - ends[0], ends[1]))
            log.warning(
                "%s has lost lines, most between the steps %d and %d: training continues",
                *(self.path / LINES, after, until),
            )
            gap = {AFTER: after, UNTIL: until}
            self.append_line(step, gap)
            kept.append({"step": step, **gap})
        return kept

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

    def check_shared(self) -> None:
        """Raises UserError unless all processes see the file that process 0 writes here.

        All of them must call it.
        """
        name = f".{uuid.uuid4().hex}.mark"
        if self._writes:
            with self._using("written"):
                write_whole(self.path / name, b"")
        mark = self.path / processes.gather(name)[0]
        seeing = processes.gather(size_of(mark) is not None)
        if self._writes:
            with self._using("written"):
                mark.unlink()
        if not all(seeing):
            raise UserError(
                f"process {seeing.index(False)} does not see what process 0 writes to "
                f"--workdir={self.path}: give a folder that all hosts mount, or one in a bucket."
            )

    def close(self) -> None:
        """Mirrors the last logs and releases the lock."""
        self._opened.close()

    def _using(self, done: str) -> AbstractContextManager[None]:
        """Names the folder for what a disk or a bucket's client raises."""
        advice = "free space or give another folder"
        if bucket_of(self.path):
            advice += " or bucket that exists and in which this account has storage.objectAdmin"
        return storage_errors(f"--workdir={self.path}", done, advice)


class Mirror:
    """Copies files of a local folder that have grown to a bucket, where each appears whole.

    It copies on call, and every MIRROR_SECONDS in the background. The first failure ends the
    copying; `check`, `copy` and `close` raise it. `check_lock` raises where nothing may be written.
    """

    def __init__(self, local: Path, remote: epath.Path, check_lock: Callable[[], None]):
        self._local, self._remote, self._check_lock = local, remote, check_lock
        self._copied: dict[Path, int] = {}
        self._failure: Exception | None = None
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error of a failed background copy."""
        if self._failure is not None:
            raise self._failure

    def copy(self) -> None:
        """Returns when everything written before the call is in the bucket.

        Raises UserError for a store that keeps failing.
        """
        with self._one_at_a_time:
            self.check()
            try:
                for path in sorted(self._local.rglob("*")):
                    self._copy_file(path)
            except Exception as error:
                self._failure = error
                raise

    def close(self) -> None:
        """Copies the rest and ends the background thread."""
        self._closed.set()
        self._thread.join()
        self.copy()

    def _copy_file(self, path: Path) -> None:
        if path.is_dir() or path.stat().st_size == self._copied.get(path):
            return
        content = path.read_bytes()
        self._check_lock()
        write_whole(self._remote / path.relative_to(self._local).as_posix(), content)
        self._copied[path] = len(content)

    def _run(self) -> None:
        while not self._closed.wait(MIRROR_SECONDS):
            with suppress(Exception):  # kept, for `check` to raise in the thread that trains
                self.copy()


def read_lines(run: PathLike) -> Iterator[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, read in pieces; raises UserError for a damaged one."""
    path = as_path(run) / LINES
    return parse_lines(pieces(path), f"{path}")


def lines_from_end(path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The byte after each line and the line, from the last one; errors as of `parse_lines`."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        end = content.rfind(b"\n") + 1
        while end:
            begin = content.rfind(b"\n", 0, end - 1) + 1
            yield end, _parse_object(content[begin:end], f"{name} at byte {begin}", "step")
            end = begin


def _text(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def read_summary(run: PathLike) -> dict[str, Any]:
    """The content of a run's summary.json; empty if the run is not finished."""
    return read_object(as_path(run) / SUMMARY)


def read_object(path: epath.Path) -> dict[str, Any]:
    """A file with a JSON object; empty if there is none. Raises UserError for a damaged one."""
    content = read_whole(path)
    return {} if content is None else _parse_object(content, f"{path}")


def parse_lines(content: Iterable[bytes], name: str = LINES) -> Iterator[dict[str, Any]]:
    """Parses lines of JSON, each with a step; drops a last line that a kill cut short.

    `content` comes in pieces of any size. Raises UserError for a damaged line; `name` is the file's
    in the error.
    """
    number, rest = 0, b""
    for piece in content:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number += 1
            yield _parse_object(line, f"{name} line {number}", "step")


def _parse_object(content: bytes, where: str, *needed: str) -> dict[str, Any]:
    """A JSON object with whole numbers by the names that are needed."""
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or any(type(value.get(name)) is not int for name in needed):
        raise UserError(f"{where} is damaged: delete it, or restore the file.")
    return value
