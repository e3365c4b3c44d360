"""Verification of shards: each is read once and compared with the SHA-256 of its manifest."""

import hashlib
import logging
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Thread
from typing import NamedTuple

from hyla_lm.errors import UserError
from hyla_lm.input.manifest import Manifest
from hyla_lm.storage import PathLike, as_path, chunks

THREADS = 8
# Beside training, the share of time in which a thread reads.
BUSY_SHARE = 0.1
CLOSE_SECONDS = 5.0
log = logging.getLogger(__name__)


class ShardFile(NamedTuple):
    """A shard where it lies, as its manifest describes it."""

    path: str
    size_bytes: int
    sha256: str


def shard_files(folder: PathLike, manifest: Manifest) -> list[ShardFile]:
    """The shards of a folder of rows."""
    place = as_path(folder)
    return [ShardFile(str(place / s.name), s.size_bytes, s.sha256) for s in manifest.shards]


def verify_before(shards: Sequence[ShardFile], attempts: int) -> None:
    """Reads shards as fast as it can; raises UserError for one that differs from its manifest."""
    started, size = time.monotonic(), sum(shard.size_bytes for shard in shards)
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(partial(_verify, attempts=attempts), shards):
            pass
    seconds = time.monotonic() - started
    log.info("verified %d shards, %.2f GB in %.1f s", len(shards), size / 1e9, seconds)


class Verification:
    """Verifies shards in a thread, in an order of this start's own.

    `rows_read` is what the run had read when it started.
    """

    def __init__(self, shards: Sequence[ShardFile], attempts: int, rows_read: int = 0):
        # A run that is often stopped begins with another shard each time.
        self._shards = random.Random(rows_read).sample(shards, len(shards))
        self._attempts, self._rows_read = attempts, rows_read
        self._verified = 0
        self._fault: Exception | None = None
        self._has_fault = False
        self._stop = Event()
        self._thread = Thread(target=self._run, name="verification", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises, once, UserError for a shard that differs from its manifest or cannot be read."""
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def close(self) -> None:
        """Stops; raises as `check` does, and tells how many shards were verified if not all."""
        self._stop.set()
        self._thread.join(CLOSE_SECONDS)
        self.check()
        if not self._has_fault and self._verified < len(self._shards):
            log.info(
                "verified %d of %d shards; hyla-lm data verify reads all of them",
                self._verified,
                len(self._shards),
            )

    def _run(self) -> None:
        try:
            for shard in self._shards:
                _verify(shard, self._attempts, self._stop, self._since())
                if self._stop.is_set():
                    return
                self._verified += 1
        except Exception as error:
            self._has_fault = True
            self._fault = error

    def _since(self) -> str:
        if self._rows_read == 0:
            return "; every step so far may have read it"
        return (
            f"; the steps since row {self._rows_read:,}, and earlier ones unless it was verified "
            "then, may have read it"
        )


def _verify(
    shard: ShardFile, attempts: int, stop: Event | None = None, consequence: str = ""
) -> None:
    """Raises UserError for a shard that differs; with `stop`, reads slowly and ends early."""
    digest, started = hashlib.sha256(), time.monotonic()
    try:
        for chunk in chunks(as_path(shard.path), attempts):
            digest.update(chunk)
            if stop is not None:
                busy = time.monotonic() - started
                if stop.wait(busy * (1 / BUSY_SHARE - 1)):
                    return
                started = time.monotonic()
    except OSError as error:
        raise UserError(f"{shard.path} cannot be read ({error}): copy the shard again.") from error
    if digest.hexdigest() != shard.sha256:
        raise UserError(
            f"{shard.path} is not the shard its manifest describes (sha256): "
            f"copy it again{consequence}."
        )
