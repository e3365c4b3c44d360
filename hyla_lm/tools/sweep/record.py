"""The folder of a sweep: its lock, and sweep.json with its points and why runs failed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hyla_lm.errors import UserError
from hyla_lm.run.lock import DiskLock
from hyla_lm.storage import as_path, bucket_of, read_whole, write_whole
from hyla_lm.tools.sweep.runs import Run

NAME = "sweep.json"


@contextmanager
def locked(workdir: str) -> Iterator[None]:
    """Makes and locks the folder; raises UserError for one that is in use or no sweep's."""
    if bucket_of(workdir):
        raise UserError(
            f"--workdir={workdir} must be a folder of a disk where this command trains: give one, "
            "or --emit_jobs to train in a bucket by jobs."
        )
    try:
        folder = Path(as_path(workdir))
        folder.mkdir(parents=True, exist_ok=True)
        strange = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if strange and NAME not in strange:
            raise UserError(
                f"--workdir={workdir} holds {strange[0]!r} and no sweep: give an empty or new "
                "folder."
            )
        lock = DiskLock(as_path(workdir))
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be used ({error.strerror}): give another folder."
        ) from error
    try:
        yield
    finally:
        lock.release()


class Record:
    """sweep.json of a folder; `failures` has the reason of each failed run by its name.

    The constructor raises UserError where the folder has another sweep, and not a part of this one,
    or a run that was begun with other settings.
    """

    def __init__(self, workdir: str, runs: Sequence[Run]):
        self._path = as_path(workdir) / NAME
        self._points = {run.point.name: list(map(str, run.point.values)) for run in runs}
        self.failures: dict[str, str] = {}
        content = read_whole(self._path)
        if content is not None:
            self._continue(content)
        for run in runs:
            run.check_unchanged()

    def _continue(self, content: bytes) -> None:
        try:
            before = json.loads(content)
            missing = [name for name in dict(before["points"]) if name not in self._points]
            self.failures = dict(before["failures"])
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{self._path} is damaged: delete it, or restore the file.") from None
        if missing:
            raise UserError(
                f"{self._path.parent} has the sweep of other points, such as {missing[0]}: give "
                "them all, and more if you like, or another --workdir."
            )

    def write(self) -> None:
        content = {"points": self._points, "failures": self.failures}
        write_whole(self._path, (json.dumps(content, indent=1) + "\n").encode())

    def ended(self, run: Run, failure: str) -> None:
        """Notes how a run ended: why it failed, or nothing."""
        self.failures.pop(run.name, None)
        if failure:
            self.failures[run.name] = failure
        self.write()
