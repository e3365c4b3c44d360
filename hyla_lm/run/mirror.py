"""A local folder whose files appear whole in a bucket, where objects cannot be appended to."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from etils import epath

from hyla_lm.storage import write_retrying

MIRROR_SECONDS = 60.0


class Mirror:
    """Copies files that have grown, on call and every MIRROR_SECONDS in the background.

    The first failure ends the copying; `check`, `copy` and `close` raise it. `may_write` is called
    before a file is written, and raises where it may not be.
    """

    def __init__(
        self, local: Path, remote: epath.Path, may_write: Callable[[], None] = lambda: None
    ):
        self._local, self._remote, self._may_write = local, remote, may_write
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
                    self._copy(path)
            except Exception as error:
                self._failure = error
                raise

    def close(self) -> None:
        """Copies the rest and ends the background thread."""
        self._closed.set()
        self._thread.join()
        self.copy()

    def _copy(self, path: Path) -> None:
        if path.is_dir() or path.stat().st_size == self._copied.get(path):
            return
        content = path.read_bytes()
        self._may_write()
        write_retrying(self._remote / path.relative_to(self._local).as_posix(), content)
        self._copied[path] = len(content)

    def _run(self) -> None:
        while not self._closed.wait(MIRROR_SECONDS):
            with suppress(Exception):  # kept, for `check` to raise in the thread that trains
                self.copy()
