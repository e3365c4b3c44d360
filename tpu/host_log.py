"""Copies a host's log to the run's bucket, where it stays when the host is taken away.

Standard library only.
"""

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

COPY_SECONDS = 60.0
FOLDER = "host_logs"


def keep(log: Path, workdir: str, seconds: float = COPY_SECONDS) -> Callable[[], None]:
    """Copies the log whenever it has grown, and returns what stops that with a last copy.

    Each start has a file of its own, WORKDIR/host_logs/HOST/TIME.log. A workdir that is no bucket
    gets none.
    """
    if "://" not in workdir:
        return lambda: None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = f"{workdir.rstrip('/')}/{FOLDER}/{socket.gethostname()}/{stamp}.log"
    ended = threading.Event()

    def go_on() -> None:
        copied = -1
        while True:
            last = ended.wait(seconds)
            size = log.stat().st_size
            if size != copied:
                copied = size if _copy(log, target) else -1
            if last:
                return

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()

    def stop() -> None:
        ended.set()
        thread.join()

    return stop


def _copy(log: Path, target: str) -> bool:
    """Whether the log was copied; if not, the log says why."""
    command = ["timeout", "60", "gcloud", "storage", "cp", "--quiet", str(log), target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        print(f"the log was not copied to {target}: {why[:200]}", flush=True)
    return not done.returncode
