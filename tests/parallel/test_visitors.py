"""Whoever visits the join port, the run meets within its time."""

import logging
import time
from contextlib import suppress

import pytest

from hyla_lm.parallel import visitors as visitors_module
from hyla_lm.parallel.messages import LONGEST_LINE, LONGEST_TEXT
from hyla_lm.parallel.visitors import MOST_AT_ONCE, MOST_LOGGED
from tests.parallel.joining import Address, Start, greet, hello, logged, said


def deep(opening: bytes) -> bytes:
    return opening * 7000 + b"\n"


BAD_VISITORS = {
    "a browser": (b"GET / HTTP/1.0\r\n\r\n", "not JSON"),
    "no UTF-8": (b"\xff\xfe\n", "not UTF-8"),
    "a list": (b"[]\n", "not an object"),
    "a number": (b"7\n", "not an object"),
    "an empty line": (b"\n", "not JSON"),
    "an empty object": (b"{}\n", "no whole number as 'index'"),
    "no name": (hello(host=None), "neither a text nor a whole number"),
    "a run that is a number": (hello(run=3), "no text as 'run'"),
    "a count that is a text": (hello(count="3"), "no whole number as 'count'"),
    "an index that is true": (hello(index=True), "neither a text nor a whole number"),
    "an index with a point": (hello(index=1.0), "neither a text nor a whole number"),
    "an index below 0": (hello(index=-1), "not from 0 to"),
    "a count that is too great": (hello(count=10**30), "not from 0 to"),
    "a count of 5000 digits": (b'{"count": ' + b"9" * 5000 + b"}\n", "not JSON"),
    "Infinity": (hello(index=float("inf")), "it sent Infinity"),
    "NaN": (hello(count=float("nan")), "it sent NaN"),
    "deep lists": (deep(b"["), "not JSON"),
    "deep objects": (deep(b'{"a":')[:8000] + b"\n", "not JSON"),
    "a long text": (hello(host="h" * (LONGEST_TEXT + 1)), "a text of more than 1000 characters"),
    "a long line": (b" " * LONGEST_LINE + hello(), "a line of 8192 bytes or more"),
    "no end of line": (b"x" * LONGEST_LINE, "a line of 8192 bytes or more"),
    "one that closes at once": (None, "closed the connection before it had joined"),
    "one that closes in a line": (hello()[:20], "closed the connection before it had joined"),
    "another run": (hello(run="other"), "trains runs/mine and not other"),
    "another run in two lines": (hello(run="a\nb"), r"trains runs/mine and not 'a\nb'"),
    "another count": (hello(count=4), "is one of 4 processes but process 0 one of 2"),
    "index 0": (hello(index=0, count=2), "process 0 (stand-in) is one of 2 processes"),
    "a secret where there is none": (hello(nonce="ab", count=2), "has no HYLA_LM_JOIN_SECRET"),
}


@pytest.mark.parametrize(("text", "reason"), BAD_VISITORS.values(), ids=BAD_VISITORS)
def test_a_bad_visitor_is_sent_away_in_one_line_and_the_run_goes_on(
    start: Start,
    address: Address,
    caplog: pytest.LogCaptureFixture,
    text: bytes | None,
    reason: str,
) -> None:
    caplog.set_level(logging.INFO)
    first = start(0, count=2)
    visitor = greet(address, text or b"")
    if not text or reason.startswith("closed"):
        visitor.close()
    line = logged(caplog, "was sent away")
    assert line.startswith("a visitor from 127.0.0.1 was sent away: ") and reason in line
    start(1, count=2).result(30)
    assert list(first.result(30)) == [1]


def test_what_a_visitor_sends_after_it_was_admitted_costs_its_place(
    start: Start, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = start(0)
    visitor = greet(address, hello())
    logged(caplog, "2 of 3 hosts have come")
    visitor.sendall(b"more\n")
    logged(caplog, "process 1 (stand-in) is gone, which had come")
    joining = [start(1), start(2)]
    assert sorted(first.result(30)) == [1, 2] and all(one.result(30) for one in joining)


def test_silent_visitors_cost_nobody_time(start: Start, address: Address) -> None:
    first = start(0)
    visitors = [greet(address, b"") for _ in range(50)]
    began = time.monotonic()
    joining = [start(1), start(2)]
    assert sorted(first.result(30)) == [1, 2] and all(one.result(30) for one in joining)
    assert time.monotonic() - began < 2
    assert all(visitor.recv(1) == b"" for visitor in visitors)


def test_the_limit_holds_whatever_visitors_do(start: Start, address: Address) -> None:
    began = time.monotonic()
    first = start(0, seconds=2)
    visitors = [greet(address, b"") for _ in range(20)]
    while not first.done():
        for visitor in visitors:
            with suppress(OSError):
                visitor.sendall(b" ")
        time.sleep(0.05)
        assert time.monotonic() - began < 3
    assert said(first).startswith("1 of 3 hosts came within 2 s")


def test_a_slow_visitor_has_as_long_as_a_silent_one(
    start: Start,
    address: Address,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(visitors_module, "HELLO_SECONDS", 1.0)
    first = start(0, count=2)
    visitor, began = greet(address, b""), time.monotonic()
    while not caplog.records and time.monotonic() - began < 5:
        visitor.sendall(b" ")
        time.sleep(0.1)
    assert 0.9 < time.monotonic() - began < 2
    assert "it did not join in 1 s" in logged(caplog, "was sent away")
    start(1, count=2).result(30)
    assert list(first.result(30)) == [1]


def test_of_too_many_visitors_the_oldest_are_sent_away(
    start: Start, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    first = start(0, count=2)
    visitors = [greet(address, b"") for _ in range(MOST_AT_ONCE + 2)]
    assert [visitor.recv(1) for visitor in visitors[:2]] == [b"", b""]
    assert caplog.text.count("64 came before it had joined") == 2
    visitors[2].sendall(hello(count=2))
    assert list(first.result(30)) == [1]
    assert visitors[2].recv(100) == b'{"go": 1}\n'


def test_a_crowd_of_bad_visitors_fills_no_log(
    start: Start, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    first = start(0, count=2)
    for _ in range(40):
        assert greet(address, b"x\n").recv(100) == b""
    start(1, count=2).result(30)
    assert list(first.result(30)) == [1]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == MOST_LOGGED + 1
    assert warnings[-1].message == "further visitors that are sent away are not logged"
