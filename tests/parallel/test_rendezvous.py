"""Processes find each other or say what is wrong; threads stand for processes."""

import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from hyla_lm.config import UserError
from hyla_lm.parallel import listening
from hyla_lm.parallel import visitors as visitors_module
from hyla_lm.parallel.messages import LONGEST_LINE, LONGEST_TEXT, Connection
from hyla_lm.parallel.rendezvous import Place, join
from hyla_lm.parallel.secret import proof
from hyla_lm.parallel.visitors import MOST_AT_ONCE, MOST_LOGGED, Expected, Visitors
from tests.parallel.test_multihost import free_port

RUN = "runs/mine"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


Joining = Future[dict[int, Connection]]
Start = Callable[..., Joining]
Address = tuple[str, int]


@pytest.fixture
def coordinator() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def address(coordinator: str) -> Address:
    return Place(coordinator, 3, 0).address


@pytest.fixture
def start(pool: ThreadPoolExecutor, coordinator: str) -> Start:
    """Starts a process of a run of `count`."""

    def start(
        index: int, count: int = 3, run: str = RUN, seconds: float = 20, secret: str = ""
    ) -> Joining:
        return pool.submit(join, Place(coordinator, count, index), run, seconds, secret)

    return start


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


def test_all_come_in_any_order_and_can_talk(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    others = [start(2), start(1)]
    time.sleep(0.1)
    first = start(0)
    connections = first.result(30)
    assert sorted(connections) == [1, 2]
    others[1].result(30)[0].send(at="here")
    assert connections[1].receive(5) == {"at": "here"}
    connections[2].send(passed="there")
    assert others[0].result(30)[0].receive(5) == {"passed": "there"}
    told = [record.message for record in caplog.records if "have come" in record.message]
    assert told == ["2 of 3 hosts have come", "3 of 3 hosts have come"]


def test_a_run_of_one_waits_for_nobody(start: Start) -> None:
    assert start(0, count=1).result(1) == {}


def test_all_that_came_name_the_ones_that_did_not(start: Start) -> None:
    joining = [start(index, count=5, seconds=2) for index in (0, 1, 3)]
    expected = "3 of 5 hosts came within 2 s, process 2, 4 did not: see whether the same command"
    assert all(said(one).startswith(expected) for one in joining)


def test_without_process_0_its_address_and_what_to_check_are_named(
    start: Start, address: Address
) -> None:
    host, port = address
    expected = f"process 1 cannot reach process 0 at {host}:{port} within 1 s (Connection refused)"
    assert expected in said(start(1, seconds=1))


def logged(caplog: pytest.LogCaptureFixture, words: str, seconds: float = 20) -> str:
    """The one line that was logged with these words, as soon as it is."""
    deadline = time.monotonic() + seconds
    while not (found := [r.message for r in caplog.records if words in r.message]):
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.01)
    assert len(found) == 1 and "\n" not in found[0]
    return found[0]


def test_one_with_another_number_of_processes_is_sent_away_and_named_at_the_limit(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    joining = [start(0, seconds=3), start(1)]
    stranger = said(start(2, count=4))
    assert "is one of 4 processes but process 0 one of 3: give all the same" in stranger
    assert logged(caplog, "was sent away").endswith(f"127.0.0.1 was sent away: {stranger}")
    assert {said(one) for one in joining} == {
        "2 of 3 hosts came within 3 s, process 2 did not: see whether the same command runs "
        f"there. Sent away: {stranger}"
    }


def test_one_that_was_sent_away_may_come_again_mended(start: Start) -> None:
    first, other = start(0), start(1)
    assert "JAX_NUM_PROCESSES" in said(start(2, count=4))
    mended = start(2)
    assert sorted(first.result(30)) == [1, 2]
    assert all(list(one.result(30)) == [0] for one in (other, mended))


def test_the_second_of_two_with_one_index_is_sent_away(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, other = start(0), start(1)
    logged(caplog, "2 of 3 hosts have come")
    twin = said(start(1))
    assert "both are process 1: give each its own JAX_PROCESS_ID" in twin
    assert logged(caplog, "was sent away").endswith(twin)
    last = start(2)
    assert sorted(first.result(30)) == [1, 2]
    assert all(list(one.result(30)) == [0] for one in (other, last))


def test_a_process_of_another_run_is_sent_away_and_the_run_goes_on(start: Start) -> None:
    first = start(0)
    stranger = said(start(1, run="runs/other"))
    assert "trains runs/mine and not runs/other" in stranger
    joining = [start(1), start(2)]
    assert sorted(first.result(30)) == [1, 2]
    assert all(list(one.result(30)) == [0] for one in joining)


def test_a_name_of_a_run_that_no_message_holds_is_refused_at_once(start: Start) -> None:
    run = "x" * (LONGEST_TEXT + 1)
    assert "--workdir has more than 1000 characters: shorten it" in said(start(0, run=run))


def test_names_of_any_characters_are_told(start: Start) -> None:
    longest = "\x01" * LONGEST_TEXT
    odd = "/tmp/\udcff é\n"
    for run in (longest, odd):
        first, other = start(0, count=2, run=run), start(1, count=2, run=run)
        assert list(first.result(30)) == [1] and list(other.result(30)) == [0]
        for connection in (*first.result().values(), *other.result().values()):
            connection.close()


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
    assert len(caplog.records) == MOST_LOGGED + 1
    assert caplog.records[-1].message == "further visitors that are sent away are not logged"


SECRET = "5f" * 32


def test_those_who_know_the_secret_join(start: Start) -> None:
    joining = [start(index, secret=SECRET) for index in range(3)]
    assert sorted(joining[0].result(30)) == [1, 2]
    assert all(list(one.result(30)) == [0] for one in joining[1:])


@pytest.mark.parametrize(
    ("of_first", "of_other", "told", "logs"),
    [
        (SECRET, "b" * 64, "another HYLA_LM_JOIN_SECRET than process 1", "has another HYLA_LM_JO"),
        (SECRET, "", "has a HYLA_LM_JOIN_SECRET and process 1", "has a HYLA_LM_JOIN_SECRET and"),
        ("", SECRET, "has no HYLA_LM_JOIN_SECRET and process 1", "has no HYLA_LM_JOIN_SECRET and"),
    ],
    ids=["another", "missing", "on the other side alone"],
)
def test_a_secret_that_differs_is_named_on_both_sides(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    of_first: str,
    of_other: str,
    told: str,
    logs: str,
) -> None:
    first = start(0, count=2, secret=of_first)
    sentence = said(start(1, count=2, secret=of_other))
    assert told in sentence and sentence.endswith("give all processes of a run the same.")
    line = logged(caplog, "was sent away")
    assert logs in line and line.endswith("give all processes of a run the same.")
    start(1, count=2, secret=of_first).result(30)
    assert list(first.result(30)) == [1]
    assert SECRET not in caplog.text + sentence


def test_the_secret_is_not_sent(coordinator: str, start: Start, address: Address) -> None:
    with socket.create_server(address) as server:
        other = start(1, count=2, secret=SECRET)
        connected, _ = server.accept()
        sent = connected.recv(LONGEST_LINE)
        assert SECRET.encode() not in sent and json.loads(sent)["nonce"]
        connected.sendall(b'{"go": 1}\n')
        assert "does not answer as process 0 of this run would" in said(other)


@pytest.mark.parametrize("stolen", ["of another visitor", "of process 0"])
def test_a_proof_that_was_overheard_proves_nothing(
    start: Start, address: Address, caplog: pytest.LogCaptureFixture, stolen: str
) -> None:
    caplog.set_level(logging.INFO)
    first, greeting = start(0, secret=SECRET), hello(nonce="ab")
    overheard = ""
    if stolen == "of another visitor":
        with greet(address, greeting) as visitor:
            challenge = json.loads(visitor.recv(LONGEST_LINE))["nonce"]
            overheard = proof(SECRET, "other", json.loads(greeting), challenge)
            visitor.sendall(json.dumps({"proof": overheard}).encode() + b"\n")
            logged(caplog, "2 of 3 hosts have come")
    with greet(address, greeting) as visitor:
        given = json.loads(visitor.recv(LONGEST_LINE))["proof"]
        visitor.sendall(json.dumps({"proof": overheard or given}).encode() + b"\n")
        assert b"has another HYLA_LM_JOIN_SECRET" in visitor.recv(LONGEST_LINE)
    joining = [start(index, secret=SECRET) for index in (1, 2)]
    assert sorted(first.result(30)) == [1, 2] and all(one.result(30) for one in joining)


def test_one_that_died_while_it_waited_may_come_again(start: Start, address: Address) -> None:
    first = start(0)
    greet(address, hello()).close()
    joining = [start(2)]
    time.sleep(0.5)
    joining.append(start(1))
    assert sorted(first.result(30)) == [1, 2]
    assert all(one.result(30) for one in joining)


def test_one_that_comes_again_as_its_forerunner_dies_keeps_its_place(address: Address) -> None:
    servers = listening.listen(*address)
    visitors = Visitors(Expected("here", RUN, 3), servers)
    forerunner, successor = greet(address, hello()), greet(address, b"")
    assert not visitors.await_all(time.monotonic() + 0.2) and list(visitors.come) == [1]
    successor.sendall(hello(host="the successor"))
    forerunner.close()
    assert not visitors.await_all(time.monotonic() + 0.2)
    assert {i: connection.name for i, connection in visitors.come.items()} == {1: "the successor"}
    visitors.close()
    visitors.come[1].close()


def test_a_process_0_that_dies_while_it_waits_is_named(start: Start, address: Address) -> None:
    with socket.create_server(address) as server:
        waiting = start(1)
        server.accept()[0].close()
        assert re.search("ended before all hosts had come|does not answer", said(waiting))


def test_what_answers_but_is_no_trainer_is_named(start: Start, address: Address) -> None:
    with socket.create_server(address) as server:
        waiting = start(1)
        server.accept()[0].sendall(b"220 mail.example.org ESMTP\n")
        assert "does not answer as process 0 of this run would" in said(waiting)


def test_a_port_in_use_is_named(start: Start, address: Address) -> None:
    with socket.create_server(("", address[1])):
        assert f"cannot listen on port {address[1]}" in said(start(0))


@pytest.mark.parametrize(
    ("coordinator", "count", "index", "named"),
    [
        ("10.0.0.1", 2, 0, "JAX_COORDINATOR_ADDRESS = '10.0.0.1' must be HOST:PORT"),
        ("10.0.0.1:1234", 2, 2, "JAX_PROCESS_ID = 2 must be below JAX_NUM_PROCESSES = 2"),
    ],
)
def test_a_place_that_cannot_be_is_named(
    coordinator: str, count: int, index: int, named: str
) -> None:
    with pytest.raises(UserError, match=named):
        Place(coordinator, count, index)


def test_addresses() -> None:
    assert Place("10.0.0.1:1234", 2, 0).address == ("10.0.0.1", 1235)
    assert Place("[fd00::1]:1234", 2, 0).address == ("fd00::1", 1235)


def test_many_come_at_once(start: Start) -> None:
    joining = [start(index, count=12) for index in range(12)]
    assert sorted(joining[0].result(30)) == list(range(1, 12))
    assert all(list(one.result(30)) == [0] for one in joining[1:])


def can_connect(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), timeout=5).close()
        return True
    return False


@pytest.mark.parametrize(
    ("host", "reached", "not_reached"),
    [
        ("127.0.0.1", {"127.0.0.1"}, {"127.0.0.2", "::1"}),
        ("127.0.0.2", {"127.0.0.2"}, {"127.0.0.1", "::1"}),
        ("::1", {"::1"}, {"127.0.0.1"}),
        ("localhost", {"127.0.0.1"}, {"127.0.0.2"}),
        ("a-name-of-nothing.invalid", {"127.0.0.1", "127.0.0.2", "::1"}, set()),
    ],
)
def test_process_0_listens_where_the_coordinator_is_and_nowhere_else(
    host: str,
    reached: set[str],
    not_reached: set[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    servers = listening.listen(host, port)
    assert {there for there in reached | not_reached if can_connect(there, port)} == reached
    for server in servers:
        server.close()
    everywhere = [r.message for r in caplog.records if "listens on all it has" in r.message]
    assert everywhere == (
        [] if not_reached else [f"{host} names no address of this host alone: {EVERYWHERE}"]
    )


EVERYWHERE = "process 0 listens on all it has"


@pytest.mark.parametrize(
    ("resolved", "own"),
    [
        (["127.0.1.1"], []),  # a host's own name in the /etc/hosts of some systems
        (["192.0.2.1"], []),  # behind NAT
        (["192.0.2.1", "127.0.0.1"], []),
        ([], []),
    ],
)
def test_a_name_that_others_resolve_otherwise_does_not_bind(
    monkeypatch: pytest.MonkeyPatch, resolved: list[str], own: list[str]
) -> None:
    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        family = socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, 0)) for address in resolved]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert listening.own_addresses("host-a") == own
