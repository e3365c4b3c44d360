"""A line of any bytes is a message or is rejected; nothing else comes of it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hyla_lm.parallel.messages import (
    GREATEST_NUMBER,
    LONGEST_LINE,
    LONGEST_TEXT,
    Connection,
    Message,
    Rejected,
    number,
    parse,
    shorten,
    text,
)

FIELDS = st.sampled_from(["run", "index", "count", "host", "nonce", "failed", "status", "at"])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(FIELDS | st.text(max_size=9), ANY_JSON, max_size=5)


def check(line: bytes) -> None:
    """Parses a line and reads every field both ways."""
    try:
        message = parse(line)
    except Rejected as error:
        assert len(str(error)) < 200 and str(error).isprintable()
        return
    for field, value in message.items():
        assert type(value) in (str, int)
        assert (
            len(value) <= LONGEST_TEXT if isinstance(value, str) else 0 <= value <= GREATEST_NUMBER
        )
        if isinstance(value, str):
            assert text(message, field) == value
            with pytest.raises(Rejected):
                number(message, field)


@settings(deadline=None)
@given(st.binary(max_size=LONGEST_LINE))
@example(b"[" * LONGEST_LINE)
@example(b'{"a":' * (LONGEST_LINE // 5))
@example(b"9" * LONGEST_LINE)
@example(b'{"a": ' + b"9" * 4000 + b"}")
@example(b'{"a": 1e999}')
@example(b'{"a": -Infinity}')
@example(b'{"a": "\\ud800"}')
@example(b"\xed\xa0\x80")
@example(b"")
def test_any_bytes(line: bytes) -> None:
    check(line)


@settings(deadline=None)
@given(ANY_JSON | OBJECTS)
def test_any_json(value: Any) -> None:
    check(json.dumps(value).encode())


@contextmanager
def connected() -> Iterator[tuple[socket.socket, Connection]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, Connection(other, "other")


@pytest.mark.parametrize("character", ["a", "\x00", "\n", '"', "\\", "é", "\U0001f600", "\udcff"])
def test_the_longest_text_of_any_characters_arrives(character: str) -> None:
    message: Message = {
        "run": character * LONGEST_TEXT,
        "host": "h" * 255,
        "index": GREATEST_NUMBER,
        "nonce": "5" * 64,
    }
    with connected() as (one, other):
        Connection(one, "one").send(**message)
        assert other.receive(5) == message


@settings(deadline=None)
@given(st.text(max_size=3 * LONGEST_TEXT))
def test_any_sentence_can_be_told_when_it_is_shortened(sentence: str) -> None:
    line = json.dumps({"failed": shorten(sentence)}).encode()
    assert "\n" not in str(parse(line)["failed"])


def test_messages_arrive_one_by_one_however_they_are_cut() -> None:
    with connected() as (one, other):
        for byte in b'{"at": "a"}\n{"at": "b"}\n{"le':
            one.sendall(bytes([byte]))
        assert [other.receive(5), other.receive(5)] == [{"at": "a"}, {"at": "b"}]
        with pytest.raises(TimeoutError):
            other.receive(0.05)
        one.sendall(b'ft": 1}\n')
        assert other.receive(5) == {"left": 1}
        one.close()
        assert other.receive(5) is None
