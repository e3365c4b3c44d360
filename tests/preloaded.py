"""Python processes of tests that begin with the trainer's modules already imported.

To import them takes a third of a tiny run. One process a test worker does it, and is copied by
fork for each process that a test starts. A copy becomes a child of the test worker, since that
adopts orphans (PR_SET_CHILD_SUBREAPER), so that signals, statuses and pipes are those of
`subprocess`. A process whose trainer is elsewhere, in a changed copy of this repository, is started
as usual, and so are all where this is not Linux.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PR_SET_CHILD_SUBREAPER = 36
SERVER = "from tests import preloaded; preloaded.serve()"
MODULES = ("hyla_lm.cli.main", "hyla_lm.train")


class Popen(subprocess.Popen):
    """subprocess.Popen of `[sys.executable, "-P", "-c" or "-m", ...]`, without its imports.

    "-P", which keeps the folder of the command out of Python's path, may be left out.
    """

    def _execute_child(self, args: list[str], executable: Any, *rest: Any) -> None:
        preexec_fn, _, pass_fds, cwd, env, _, _, shell, *streams = rest
        new_session, process_group = rest[-2:]
        env = {**os.environ} if env is None else env
        is_usual = not (preexec_fn or pass_fds or shell or new_session) and process_group == -1
        if not (is_usual and can_be_copied(args, env)):
            return super()._execute_child(args, executable, *rest)
        p2cread, _, _, c2pwrite, _, errwrite = streams[:6]
        request = {"argv": args[1:], "env": env, "cwd": str(cwd or Path.cwd())}
        own = [
            end if end != -1 else number for number, end in enumerate((p2cread, c2pwrite, errwrite))
        ]
        self.pid = server().start(request, own)
        self._child_created = True
        self._close_pipe_fds(*streams[:6])


def run(args: list[str], **options: Any) -> subprocess.CompletedProcess:
    """subprocess.run with `Popen` above."""
    check, timeout = options.pop("check", False), options.pop("timeout", None)
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def can_be_copied(args: list[str], env: dict[str, str]) -> bool:
    """Whether a process that has begun already can become this one."""
    is_python = args[0] == sys.executable and args[1 + (args[1] == "-P")] in ("-c", "-m")
    is_same = read_first(env) == read_first(os.environ)
    is_of_here = (env.get("PYTHONPATH") or str(ROOT)).split(":")[-1] == str(ROOT)
    return sys.platform == "linux" and is_python and is_same and is_of_here


def read_first(env: dict[str, str] | os._Environ[str]) -> dict[str, str]:
    """The variables that are read before the first module."""
    prefixes = ("PYTHON", "TF_", "LD_")
    read = {name: value for name, value in env.items() if name.startswith(prefixes)}
    read.pop("PYTHONPATH", None)
    return read


class Server:
    """The process that is copied; it ends with this one."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._adopt = partial(ctypes.CDLL(None).prctl, PR_SET_CHILD_SUBREAPER)
        self._asked, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={
                name: value
                for name, value in os.environ.items()
                if name != "PYTHONPATH" and not name.startswith("JAX_")
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(self._end)

    def start(self, request: dict[str, Any], streams: list[int]) -> int:
        """The number of a process that was started as requested: a child of this one."""
        message = json.dumps(request).encode()
        with self._asking:
            self._adopt(1, 0, 0, 0)
            socket.send_fds(self._asked, [len(message).to_bytes(8)], streams)
            self._asked.sendall(message)
            number = self._asked.recv(8, socket.MSG_WAITALL)
            self._adopt(0, 0, 0, 0)
        if not number:
            raise RuntimeError("the process that is copied has ended: its error is above")
        return int.from_bytes(number)

    def _end(self) -> None:
        self._asked.close()
        self._process.wait()


server = functools.cache(Server)


def serve() -> None:
    """Imports modules; each copy of this process becomes one that was asked for."""
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # as in tests/conftest.py
    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        head, streams, _, _ = socket.recv_fds(asked, 8, 3)
        if not head:
            return
        request = json.loads(asked.recv(int.from_bytes(head), socket.MSG_WAITALL))
        number = copied(asked)
        if number is None:
            return become(request, streams)
        for stream in streams:
            os.close(stream)
        asked.sendall(number.to_bytes(8))


def copied(asked: socket.socket) -> int | None:
    """The number of an orphan, once it has been adopted; None in the orphan itself."""
    said, tell = os.pipe()
    if between := os.fork():
        os.close(tell)
        number = int.from_bytes(os.read(said, 8))
        os.close(said)
        os.waitpid(between, 0)
        return number
    if number := os.fork():
        os.write(tell, number.to_bytes(8))
        os._exit(0)
    for descriptor in (said, tell, asked.detach()):
        os.close(descriptor)
    return None


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Makes this process the one requested, and runs it."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.environ.setdefault("GLIBC_TUNABLES", "")  # or hyla-lm starts itself anew
    signal.signal(signal.SIGINT, signal.default_int_handler)
    configure_jax()
    argv = request["argv"]
    safe = argv[0] == "-P"
    kind, what, *arguments = argv[safe:]
    folders = filter(None, request["env"].get("PYTHONPATH", "").split(":"))
    here = request["cwd"] if kind == "-m" else ""
    sys.path[:1] = [*([] if safe else [here]), *folders]
    sys.argv = [kind, *arguments]
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), sys.modules["__main__"].__dict__)
    except SystemExit as done:
        if isinstance(done.code, int | None):
            end(done.code or 0)
        raise
    end(0)


def end(status: int) -> None:
    """Ends as Python does, but frees nothing, since that writes to all memory of a copy.

    Returns where an output cannot be written: Python says so as it ends.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def configure_jax() -> None:
    """What JAX reads of its environment when it is imported."""
    import jax

    settings = jax.config.values
    for name, text in os.environ.items():
        if name.startswith("JAX_") and name.lower() in settings:
            jax.config.update(name.lower(), like(settings[name.lower()], text))


def like(value: Any, text: str) -> Any:
    """The text as a value of the same type."""
    if isinstance(value, bool):
        return text.lower() in ("1", "true", "y", "yes", "t", "on")
    return type(value)(text) if isinstance(value, int | float) else text
