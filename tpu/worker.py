"""Starts, watches and stops the trainer on a TPU host. Standard library only.

    python -m hyla_lm.tpu.worker start FOLDER --workdir=DIR -- COMMAND …
    python -m hyla_lm.tpu.worker status FOLDER
    python -m hyla_lm.tpu.worker stop FOLDER

The folder holds `log`, `status.json` and `running`, a lock that the trainer itself holds, so it is
free once every process of the trainer has ended in any way.
"""

import argparse
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PREEMPTED = 75
WHOLE = "commit_success.txt"  # what Orbax writes last in a bucket
LOOK_SECONDS = 0.05
STOP_SECONDS, KILL_SECONDS = 120, 10
COPY_SECONDS = 60
WRAPPER = '#!/bin/sh\ncd "{checkout}" && exec "{python}" -m hyla_lm.tpu.worker "$@"\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs start, status or stop, and prints the result as a line of JSON."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    end = argv.index("--") if "--" in argv else len(argv)
    options, command = _parser().parse_args(argv[:end]), argv[end + 1 :]
    folder = Path(options.folder)
    if options.verb == "watch":
        return watch(folder, options.lock, options.workdir, command)
    if options.verb == "start":
        found = start(folder, options.workdir, command)
    else:
        found = stop(folder) if options.verb == "stop" else status(folder)
    print(json.dumps({"host": socket.gethostname(), **found}))
    return 0


def start(folder: Path, workdir: str, command: Sequence[str]) -> dict[str, Any]:
    """Starts the command unless one runs in this folder; `started` says whether it did."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = _take_lock(folder, attempts=5)
    if lock is None:
        return {"started": False, **status(folder)}
    wrapper = folder / "worker"
    checkout = Path(__file__).resolve().parents[1]
    wrapper.write_text(WRAPPER.format(checkout=checkout, python=sys.executable))
    wrapper.chmod(0o755)
    last = _read(folder)
    failures = last.get("failures", 0) + (last.get("state") == "running")
    _write(folder, {"state": "running", "failures": failures})
    flags = [str(folder), f"--lock={lock}", f"--workdir={workdir}", "--", *command]
    with (folder / "log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "hyla_lm.tpu.worker", "watch", *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
        )
    os.close(lock)
    return {"started": True, **_read(folder)}


def watch(folder: Path, lock: int, workdir: str, command: Sequence[str]) -> int:
    """Runs the command and writes down how it ended."""
    # A machine that is taken away sends every process SIGTERM, also this one, which waits until
    # the trainer has saved.
    signal.signal(signal.SIGTERM, lambda *_: None)
    before = _read(folder)
    began_at = newest_checkpoint(workdir)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    copy = f"{workdir.rstrip('/')}/host_logs/{socket.gethostname()}/{stamp}.log"
    trainer = subprocess.Popen(command, pass_fds=(lock,), process_group=0)
    _write(folder, {**before, "pid": trainer.pid})
    code = None
    while code is None:
        try:
            code = trainer.wait(COPY_SECONDS)
        except subprocess.TimeoutExpired:
            copy_log(folder / "log", copy)
    _signal(os.killpg, trainer.pid, signal.SIGKILL)
    code = 128 - code if code < 0 else code
    reached = newest_checkpoint(workdir)
    stuck = reached == began_at
    failures = (before.get("failures", 0) if stuck else 0) + (code not in (0, PREEMPTED))
    ending = {"state": "exited", "code": code, "step": reached, "failures": failures}
    _write(folder, ending)
    print(
        f"{time.strftime('%FT%TZ', time.gmtime())} the trainer ended with status {code}", flush=True
    )
    copy_log(folder / "log", copy)
    return code


def status(folder: Path) -> dict[str, Any]:
    """The state of the trainer; `died` if it ended without its watcher."""
    found = _read(folder)
    if found.get("state") != "running" or _is_locked(folder):
        return found
    found = _read(folder)  # it may have ended, and said how, after it was first read
    return {**found, "state": "died"} if found["state"] == "running" else found


def stop(folder: Path, seconds: float = STOP_SECONDS) -> dict[str, Any]:
    """SIGTERM, then after some seconds SIGKILL for the trainer and the processes it started."""
    started, terminated = time.monotonic(), False
    while _is_locked(folder) and time.monotonic() < started + seconds + KILL_SECONDS:
        pid = _read(folder).get("pid")
        if pid and not terminated:
            _signal(os.kill, pid, signal.SIGTERM)
            terminated = True
        if pid and time.monotonic() > started + seconds:
            _signal(os.killpg, pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)
    return status(folder)


def newest_checkpoint(workdir: str) -> int | None:
    """The newest step among the checkpoints of a run, local or in a bucket."""
    folder = f"{workdir.rstrip('/')}/checkpoints"
    if "://" in workdir:
        command = ["timeout", "60", "gcloud", "storage", "ls", f"{folder}/*/{WHOLE}"]
        names = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    else:
        names = os.listdir(folder) if os.path.isdir(folder) else []
    pattern = rf"(?:^|/)(\d+)(?:/{WHOLE})?$"
    steps = [int(match[1]) for name in names if (match := re.search(pattern, name))]
    return max(steps, default=None)


def copy_log(log: Path, target: str) -> None:
    """Copies the log to a bucket, where it outlives the machine; if it cannot, the log says why."""
    if "://" in target:
        command = ["timeout", "60", "gcloud", "storage", "cp", "--quiet", str(log), target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"the log was not copied to {target}: {done.stderr.strip()[-200:]}", flush=True)


def _take_lock(folder: Path, attempts: int = 1) -> int | None:
    """A file descriptor that holds the folder's lock; None while a trainer has it.

    `status` holds the lock for an instant too, so starting a trainer takes several attempts.
    """
    lock = os.open(folder / "running", os.O_CREAT | os.O_RDWR, 0o644)
    for _ in range(attempts):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            time.sleep(LOOK_SECONDS if attempts > 1 else 0)
    os.close(lock)
    return None


def _is_locked(folder: Path) -> bool:
    lock = _take_lock(folder) if folder.is_dir() else None
    if lock is not None:
        os.close(lock)
    return folder.is_dir() and lock is None


def _signal(send: Any, target: int, number: int) -> None:
    try:
        send(target, number)
    except ProcessLookupError:
        return


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _write(folder: Path, found: dict[str, Any]) -> None:
    """Writes status.json aside and renames it."""
    partial = folder / ".status.json.partial"
    partial.write_text(json.dumps(found))
    partial.replace(folder / "status.json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hyla_lm.tpu.worker", description=__doc__)
    parser.add_argument("verb", choices=("start", "watch", "status", "stop"))
    parser.add_argument("folder")
    parser.add_argument("--workdir", default="", help="where the trainer keeps its checkpoints")
    parser.add_argument("--lock", type=int, help="file descriptor (watch)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
