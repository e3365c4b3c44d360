"""Threads that stand for processes of a run, and visitors of its join port."""

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from hyla_lm.errors import UserError
from hyla_lm.parallel.messages import Connection

RUN = "runs/mine"


Joining = Future[dict[int, Connection]]
Start = Callable[..., Joining]
Address = tuple[str, int]


def said(joining: Joining) -> str:
    with pytest.raises(UserError) as caught:
        joining.result(30)
    return str(caught.value)


def greet(address: Address, text: bytes) -> socket.socket:
    deadline = time.monotonic() + 20
    while True:
        try:
            visitor = socket.create_connection(address)
            visitor.sendall(text)
            return visitor
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def hello(**changes: object) -> bytes:
    fields = {"run": RUN, "index": 1, "count": 3, "host": "stand-in", **changes}
    return json.dumps(fields).encode() + b"\n"


def logged(caplog: pytest.LogCaptureFixture, words: str, seconds: float = 20) -> str:
    """The one line that was logged with these words, as soon as it is."""
    deadline = time.monotonic() + seconds
    while not (found := [r.message for r in caplog.records if words in r.message]):
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.01)
    assert len(found) == 1 and "\n" not in found[0]
    return found[0]
