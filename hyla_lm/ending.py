"""How a command ends: with a status, and if it fails with a sentence on stderr.

After the sentence of an error of the program stands its traceback.
"""

import logging
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress

from hyla_lm.errors import Unavailable, UserError, passes

DONE, FAILED, MISTAKE, UNAVAILABLE, STOPPED, INTERRUPTED, UNREAD = 0, 1, 2, 69, 75, 130, 141
# What each means: docs/exit_statuses.md. 69 and 75 are names of sysexits.h.
LONGEST_REASON = 300
# Packages whose classes of errors are of a store, a network or a device.
CLIENTS = ("jax", "google.", "gcsfs", "aiohttp", "requests", "urllib3", "orbax", "grain")
SPECIFICATION = " [tensorstore_spec"
OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")
KILLED_READER = re.compile(r"Worker process was terminated unexpectedly")  # Grain's RuntimeError
LONG_QUOTE = re.compile(r'"[^"]{60,}"')


class Preempted(Exception):
    """A run was interrupted and has saved everything up to a step."""


def classed(error: BaseException) -> BaseException:
    """The error, as a UserError if storage, memory, a device or a helper process raised it."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        path = f"{error.filename}: " if error.filename else ""
        sentence = f"{path}{error.strerror or os.strerror(error.errno)}"
    else:
        sentence = reason_of(error)
    if isinstance(error, BrokenExecutor) or KILLED_READER.match(str(error)):
        return Unavailable(
            "the system killed a helper process, most often for want of memory: free some, and run "
            "the same command again."
        )
    if isinstance(error, OSError) or type(error).__module__.startswith(CLIENTS):
        if passes(error):
            return Unavailable(f"{sentence}, which may pass: run the same command again.")
        if passes(error) is False:
            return UserError(f"{sentence}: mend that, and run the same command again.")
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
        return UserError(
            f"the memory of the device does not hold the model and its batch ({reason_of(error)}): "
            "lower TrainConfig.batch_size, raise TrainConfig.accumulate_steps, set "
            "ModelConfig.remat, or take a smaller model; hyla-lm plan says what fits."
        )
    return error


def status_of(error: BaseException) -> int:
    """The exit status of a command that ends with this error."""
    error = classed(error)
    if isinstance(error, UserError):
        return UNAVAILABLE if isinstance(error, Unavailable) else MISTAKE
    if isinstance(error, Preempted):
        return STOPPED
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED


def sentence_of(error: BaseException) -> str:
    """What a person reads."""
    error = classed(error)
    if isinstance(error, Preempted):
        return f"{error}; the same command resumes"
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {reason_of(error)}"


def reason_of(error: BaseException) -> str:
    """The first line of what a library says, without the long paths that it repeats."""
    first = str(error).strip().partition("\n")[0].partition(SPECIFICATION)[0]
    return LONG_QUOTE.sub('"…"', first)[:LONGEST_REASON] or type(error).__name__


def told(error: BaseException) -> str:
    """What is written of an error: its sentence, and of an error of the program its traceback."""
    if status_of(error) != FAILED:
        return sentence_of(error)
    return "\n".join([sentence_of(error), *traceback.format_exception(error)]).rstrip()


def run(name: str, command: Callable[[], int | None]) -> int:
    """Runs a command and returns its status; says why where it fails."""
    with _quiet(name) as of_threads:
        try:
            status = command() or DONE
            sys.stdout.flush()
            print(*of_threads, sep="\n", end="\n" if of_threads else "", file=sys.stderr)
            return status
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, BrokenPipeError) and _nobody_reads():
                return UNREAD
            say(told(error), name)
            return status_of(error)


def say(sentence: str, name: str = "hyla-lm") -> None:
    """Prints to stderr, which nobody need read any more."""
    with suppress(OSError):
        print(f"{name}: {sentence}", file=sys.stderr, flush=True)


def _nobody_reads() -> bool:
    """Whether who read our output has gone, as `head` does; then nothing more is written to it."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    is_gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_gone:
        write_no_more()
    return is_gone


def write_no_more() -> None:
    """What is printed from now on goes nowhere, as does what waits to be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def process(main: Callable[[], int]) -> None:
    """Runs the main function of a process, which ends with its status.

    Ctrl-C ends it without a traceback, but where hyla_lm.signals answers. A command that failed
    does not wait for what it left behind.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_closed_streams()
    status = main()
    with suppress(OSError):  # of a terminal that is gone
        sys.stdout.flush()
        sys.stderr.flush()
    if status != DONE:
        os._exit(status)


def _open_closed_streams() -> None:
    """Opens what the process was started without, as after `<&-`: files would take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  open to the end


@contextmanager
def _quiet(name: str) -> Iterator[Collection[str]]:
    """Keeps libraries from writing more than errors.

    Gives lines on errors of threads, which a command that fails repeats.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hyla_lm").setLevel(logging.INFO)
    # What they say of errors is in what they raise.
    for library in ("absl", "asyncio", "gcsfs", "fsspec"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    before = threading.excepthook, sys.excepthook, sys.unraisablehook
    found: dict[str, None] = {}

    def keep(error: BaseException | None) -> None:
        # Clients leave callbacks behind when a read fails that is tried again.
        if error is not None and str(error) != "Event loop is closed":
            found[f"{name}: in a thread, {type(error).__name__}: {reason_of(error)}"] = None

    threading.excepthook = lambda failed: keep(failed.exc_value)
    sys.excepthook = lambda kind, error, trace: keep(error)  # also of threads of C++ libraries
    sys.unraisablehook = lambda failed: keep(failed.exc_value)
    try:
        yield found
    finally:
        threading.excepthook, sys.excepthook, sys.unraisablehook = before
