"""What an error that nobody expected ends with: one sentence and a status by what mends it."""

import errno
import logging
import os
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import NoReturn

import pytest
from jax.errors import JaxRuntimeError

from hyla_lm import ending
from hyla_lm.errors import Unavailable, UserError, passes


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "run/x"), 2, "run/x: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "run"), 2, "run: Permission denied"),
        (OSError(errno.EIO, "Input/output error", "run/x"), 69, "run/x: Input/output error"),
        (OSError(errno.EMFILE, "Too many open files"), 69, "Too many open files, which may pass"),
        (OSError("HttpError: injected, 429"), 69, "HttpError: injected, 429, which may pass"),
        (OSError("Forbidden: https://store/b\nno access"), 2, "https://store/b: mend that"),
        (JaxRuntimeError("UNAVAILABLE: halted"), 69, "UNAVAILABLE: halted, which may pass"),
        (RuntimeError("Worker process was terminated unexpectedly"), 69, "killed a helper process"),
        (BrokenProcessPool("terminated abruptly"), 69, "the system killed a helper process"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 2, "TrainConfig.batch_size"),
        (ValueError("a bug of 503"), 1, "ValueError: a bug of 503"),
    ],
)
def test_an_error_of_a_machine_is_one_sentence(
    error: Exception, status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> NoReturn:
        raise error

    assert ending.run("hyla-lm", fail) == status
    [line, *frames] = capsys.readouterr().err.splitlines()
    assert says in line
    assert bool(frames) == (status == 1)


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (ValueError("UNAVAILABLE: the store"), True),
        (ValueError(f"reading: {os.strerror(errno.ESTALE)}"), True),
        (ConnectionResetError(), True),
        (ValueError("its meta differs from its hash"), None),
        (ValueError("Expecting value: line 1 column 503 (char 502)"), None),
        (ValueError(f"writing: {os.strerror(errno.ENOSPC)}"), False),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
    ],
)
def test_errors_are_classed_by_what_mends_them_however_libraries_wrap_them(
    error: Exception, may_pass: bool | None
) -> None:
    wrapped = RuntimeError("a library's own")
    wrapped.__cause__ = error
    assert passes(error) is passes(wrapped) is may_pass
    assert isinstance(ending.classed(UserError("x")), UserError)
    assert not isinstance(ending.classed(UserError("x")), Unavailable)


def test_what_clients_leave_behind_when_a_try_fails_is_not_printed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> NoReturn:
        raise RuntimeError("Event loop is closed")

    def succeed() -> None:
        for client in ("gcsfs", "fsspec.prefetcher"):
            logging.getLogger(client).error("a traceback")
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()

    assert ending.run("hyla-lm", succeed) == 0
    assert capsys.readouterr().err == caplog.text == ""
