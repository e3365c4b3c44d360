"""One run a folder, in a bucket: a lease that its holder renews, and that others wait out.

Ages are taken by the clock of the store. A write names the generation that it replaces, so that of
several runs that take a lease one gets it, and a run whose lease was taken learns it.
"""

import json
import threading
import time
import uuid
from contextlib import suppress
from typing import Any, NamedTuple

from etils import epath

from hyla_lm.errors import Unavailable, UserError
from hyla_lm.run.lock import LOCK, named, refusal, this_process
from hyla_lm.storage import bucket_errors, bucket_of, look_at_bucket

LEASE_SECONDS = 90.0
RENEW_SECONDS = 20.0
RETRY_SECONDS = 5.0
REQUEST_SECONDS = 10.0


class Found(NamedTuple):
    """A lease as it is in the bucket."""

    generation: int
    updated: float
    content: bytes


class BucketLease:
    """A lease on a folder, renewed in the background; raises UserError while another renews one.

    A lease that was not renewed for LEASE_SECONDS is taken over.
    """

    def __init__(self, folder: epath.Path):
        from google.cloud import storage

        look_at_bucket(folder)
        self._folder, bucket = folder, bucket_of(folder)
        self._bucket = storage.Client().bucket(bucket.removeprefix("gs://"))
        self._name = str(folder / LOCK).removeprefix(f"{bucket}/")
        self._content = json.dumps(this_process() | {"token": uuid.uuid4().hex}).encode()
        self._trouble: Exception | None = None
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
                f"{LEASE_SECONDS:g} s ({self._trouble or 'no answer'}), so that another run may "
                "have it: check the storage and start again."
            )

    def release(self) -> None:
        """Deletes the lease if it is still this run's."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        self._closed.set()
        self._thread.join()
        try:
            with bucket_errors(self._folder), suppress(NotFound, PreconditionFailed):
                if generation := self._generation_if_ours():
                    self._bucket.blob(self._name).delete(if_generation_match=generation)
        except OSError as error:
            print(
                f"the lease on {self._folder} could not be given back ({error}): the next run "
                f"there waits up to {LEASE_SECONDS:g} s.",
                flush=True,
            )

    def _take(self) -> int:
        """The generation of this run's lease, once no other run has one."""
        self._renewed = time.monotonic()
        if generation := self._write(0):
            return generation
        found = self._look()
        if found is None:
            return self._replace(0)
        age = self._now() - found.updated
        stale = time.monotonic() + LEASE_SECONDS - age
        if age < LEASE_SECONDS:
            print(
                f"waits up to {LEASE_SECONDS - age:.0f} s for the lease of {named(found.content)}, "
                f"which may have died, on {self._folder}",
                flush=True,
            )
        while (left := stale - time.monotonic()) > 0:
            time.sleep(min(left, RETRY_SECONDS))
            now = self._look()
            if now is None:
                return self._replace(0)
            if now.generation != found.generation:
                raise refusal(self._folder, now.content)
        return self._replace(found.generation)

    def _replace(self, expected: int) -> int:
        """The generation written over the expected one; raises UserError if another run did."""
        self._renewed = time.monotonic()
        if generation := self._write(expected):
            return generation
        found = self._look()
        raise refusal(self._folder, found.content if found else b"")

    def _write(self, expected: int, **options: Any) -> int | None:
        """The generation written over the expected one, 0 for none; None if another is there."""
        from google.api_core.exceptions import PreconditionFailed

        blob = self._bucket.blob(self._name)
        try:
            blob.upload_from_string(self._content, if_generation_match=expected, **options)
        except PreconditionFailed:
            return self._generation_if_ours()
        return blob.generation

    def _generation_if_ours(self) -> int | None:
        """The generation of the lease, which may be of a write whose answer was lost."""
        found = self._look()
        return found.generation if found and found.content == self._content else None

    def _look(self) -> Found | None:
        from google.api_core.exceptions import NotFound, PreconditionFailed

        while (blob := self._bucket.get_blob(self._name, timeout=REQUEST_SECONDS)) is not None:
            with suppress(NotFound, PreconditionFailed):  # written again in between
                content = blob.download_as_bytes(if_generation_match=blob.generation)
                return Found(blob.generation, blob.updated.timestamp(), content)
        return None

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
                found = self._look()
                self._taken_by = named(found.content) if found else "another process"
                return False
        except Exception as error:
            self._trouble = error
            return False
        self._generation, self._renewed = generation, sent
        return True
