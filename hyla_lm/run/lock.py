"""One run a folder: the lock on a disk, and what is told of who holds it.

`hyla_lm.run.bucket_lease` is the lock of a folder in a bucket.
"""

import errno
import fcntl
import json
import os
import socket
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from etils import epath

from hyla_lm.errors import UserError

LOCK = ".lock"
LONGEST_CONTENT = 4096
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class FolderLock(Protocol):
    """A folder that no other run may use; its constructor raises UserError where one does."""

    def check(self) -> None:
        """Raises UserError if another run has the folder, or may have it."""
        ...

    def release(self) -> None:
        """Gives the folder back."""
        ...


class DiskLock:
    """A lock of the kernel, which ends with the process; raises UserError where one holds it.

    Children do not inherit it. The file stays, and names the process that had the lock last.
    """

    def __init__(self, folder: epath.Path):
        with ExitStack() as stack:
            file = stack.enter_context((Path(folder) / LOCK).open("a+b", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise refusal(folder, file.read(LONGEST_CONTENT)) from None
            except OSError as error:
                if error.errno not in WITHOUT_LOCKS:
                    raise
                raise UserError(
                    f"--workdir={folder} is on a disk without file locks ({error.strerror}), where "
                    "two runs would not notice each other: mount it with locks or give a folder "
                    "on another disk."
                ) from error
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # also for a child that is being made
            file.truncate(0)
            file.write(json.dumps(this_process()).encode())
            self._file, self._stack = file, stack.pop_all()

    def check(self) -> None:
        """Nobody can take this lock away."""

    def release(self) -> None:
        self._stack.close()


def this_process() -> dict[str, Any]:
    """Who holds a lock, as its file says it."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started}


def refusal(folder: epath.Path, content: bytes) -> UserError:
    """The error of a run in a folder whose lock has this content."""
    return UserError(
        f"--workdir={folder} is being trained by {named(content)}: wait for it, end it, or give "
        "another folder."
    )


def named(content: bytes) -> str:
    """The process that a lock's content names; "another process" for damaged content."""
    try:
        found = json.loads(content)
        since = datetime.fromisoformat(found["started"]).astimezone(UTC)
        return f"process {found['pid']} on {found['host']} since {since:%Y-%m-%d %H:%M} UTC"
    except (ValueError, TypeError, KeyError):
        return "another process"
