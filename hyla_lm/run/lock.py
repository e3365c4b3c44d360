"""One run a folder: a lock of the kernel on a disk, a lease in a bucket.

Both are the file `.lock`, which names the process that holds the folder.
"""

import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from etils import epath

from hyla_lm.errors import Unavailable, UserError
from hyla_lm.storage import bucket_errors, bucket_of

LOCK = ".lock"
LONGEST_CONTENT = 4096
LEASE_SECONDS = 90.0
RENEW_SECONDS = 20.0
RETRY_SECONDS = 5.0
REQUEST_SECONDS = 10.0


class DiskLock:
    """A lock of the kernel, which ends with the process; raises UserError where one holds it.

    Children do not inherit it. The file stays, and names the process that had the lock last.
    Raises OSError on a disk without locks.
    """

    def __init__(self, folder: epath.Path):
        path, flags = Path(folder) / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        try:
            self._folder, self._file = folder, os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise UserError(
                f"{path} is a symbolic link, which a run never makes: delete it."
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.write(self._file, json.dumps(_this_process()).encode())
        except OSError as error:
            content = os.read(self._file, LONGEST_CONTENT)
            os.close(self._file)
            if isinstance(error, BlockingIOError):
                raise _refusal(folder, content) from None
            raise

    def check(self) -> None:
        """Raises UserError where the folder was removed, since nobody can take this lock away."""
        if os.fstat(self._file).st_nlink == 0:
            raise UserError(f"{self._folder} was removed while the run wrote to it: start it anew.")

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)  # also for a child that is being made
        os.close(self._file)


class BucketLease:
    """A lease on a folder, renewed in the background; raises UserError while another renews one.

    A lease that was not renewed for LEASE_SECONDS is taken over. Ages are taken by the clock of the
    store. A write names the generation that it replaces, so that of several runs that take a lease
    one gets it, and a run whose lease was taken learns it.
    """

    def __init__(self, folder: epath.Path):
        from google.cloud import storage

        self._folder, bucket = folder, bucket_of(folder)
        self._bucket = storage.Client().bucket(bucket.removeprefix("gs://"))
        self._name = str(folder / LOCK).removeprefix(f"{bucket}/")
        self._content = json.dumps(_this_process() | {"token": uuid.uuid4().hex}).encode()
        self._error: Exception | None = None
        self._taken_by = ""
        self._renewed = time.monotonic()
        self._generation = self._take()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises UserError if another run has the folder, or may have it."""
        if self._taken_by:
            raise UserError(
                f"--workdir={self._folder} was taken over by {self._taken_by}, since this run did "
                f"not renew its lease for {LEASE_SECONDS:g} s: leave it to that run, or end it and "
                "start again."
            )
        if time.monotonic() - self._renewed > LEASE_SECONDS:
            raise Unavailable(
                f"the lease on --workdir={self._folder} could not be renewed for "
                f"{LEASE_SECONDS:g} s ({self._error or 'no answer'}), so that another run may "
                "have it: check the storage and start again."
            )

    def release(self) -> None:
        """Deletes the lease if it is still this run's."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        self._closed.set()
        self._thread.join()
        try:
            with bucket_errors(self._folder), suppress(NotFound, PreconditionFailed):
                if generation := self._own_generation():
                    self._bucket.blob(self._name).delete(if_generation_match=generation)
        except OSError as error:
            print(f"the lease on {self._folder} could not be given back ({error})", flush=True)

    def _take(self) -> int:
        """The generation of this run's lease, once no other run has one."""
        lease, content = self._read()
        expected = 0 if lease is None else self._wait_for(lease, content)
        self._renewed = time.monotonic()
        if generation := self._write(expected):
            return generation
        raise _refusal(self._folder, self._read()[1])

    def _wait_for(self, lease: Any, content: bytes) -> int:
        """The generation to replace, of a lease that is stale, or 0 for one that was given back.

        Raises UserError if it is renewed.
        """
        age = self._now() - lease.updated.timestamp()
        stale = time.monotonic() + LEASE_SECONDS - age
        if age < LEASE_SECONDS:
            print(
                f"waits up to {LEASE_SECONDS - age:.0f} s for the lease of {holder(content)}, "
                f"which may have died, on {self._folder}",
                flush=True,
            )
        while (left := stale - time.monotonic()) > 0:
            time.sleep(min(left, RETRY_SECONDS))
            now, content = self._read()
            if now is None:
                return 0
            if now.generation != lease.generation:
                raise _refusal(self._folder, content)
        return int(lease.generation)

    def _write(self, expected: int, **options: Any) -> int | None:
        """The generation written over the expected one, 0 for none; None if another is there."""
        from google.api_core.exceptions import PreconditionFailed

        blob = self._bucket.blob(self._name)
        try:
            blob.upload_from_string(self._content, if_generation_match=expected, **options)
        except PreconditionFailed:
            return self._own_generation()
        return blob.generation

    def _own_generation(self) -> int | None:
        """The generation of this run's lease, which may be of a write whose answer was lost."""
        lease, content = self._read()
        return lease.generation if content == self._content else None

    def _read(self) -> tuple[Any, bytes]:
        """The lease in the bucket, and its content; None where there is none."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        while (blob := self._bucket.get_blob(self._name, timeout=REQUEST_SECONDS)) is not None:
            with suppress(NotFound, PreconditionFailed):  # written again in between
                return blob, blob.download_as_bytes(if_generation_match=blob.generation)
        return None, b""

    def _now(self) -> float:
        """The time by the clock of the store, which a file written there has."""
        probe = self._bucket.blob(f"{self._name}.{uuid.uuid4().hex}")
        probe.upload_from_string(b"")
        probe.delete()
        return probe.updated.timestamp()

    def _run(self) -> None:
        wait = RENEW_SECONDS
        while not self._closed.wait(wait) and not self._taken_by:
            wait = RENEW_SECONDS if self._renew() else RETRY_SECONDS

    def _renew(self) -> bool:
        """Whether it did; what fails is tried again until `check` gives up."""
        sent = time.monotonic()
        try:
            generation = self._write(self._generation, timeout=REQUEST_SECONDS, retry=None)
            if generation is None:
                self._taken_by = holder(self._read()[1])
                return False
        except Exception as error:
            self._error = error
            return False
        self._generation, self._renewed = generation, sent
        return True


def _this_process() -> dict[str, Any]:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started}


def _refusal(folder: epath.Path, content: bytes) -> UserError:
    return UserError(
        f"--workdir={folder} is being trained by {holder(content)}: wait for it, end it, or give "
        "another folder."
    )


def holder(content: bytes) -> str:
    """The process that a lock's content names; "another process" for damaged content."""
    try:
        fields = json.loads(content)
        since = datetime.fromisoformat(fields["started"]).astimezone(UTC)
        return f"process {fields['pid']} on {fields['host']} since {since:%Y-%m-%d %H:%M} UTC"
    except (ValueError, TypeError, KeyError):
        return "another process"
