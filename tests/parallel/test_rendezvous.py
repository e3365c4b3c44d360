"""Processes find each other or say what is wrong; threads stand for processes."""

import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from hyla_lm.config import UserError
from hyla_lm.parallel.rendezvous import Connection, Place, join
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

    def start(index: int, count: int = 3, run: str = RUN, seconds: float = 20) -> Joining:
        return pool.submit(join, Place(coordinator, count, index), run, seconds)

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


def test_another_number_of_processes_ends_all(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    joining = [start(0), start(1)]
    deadline = time.monotonic() + 20
    while "2 of 3 hosts have come" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    joining.append(start(2, count=4))
    said_by_all = {said(one) for one in joining}
    assert len(said_by_all) == 1
    assert "is one of 4 processes but process 0 one of 3" in said_by_all.pop()


def test_two_with_one_index_end_all(start: Start) -> None:
    joining = [start(0), start(1), start(1)]
    assert all("both are process 1: give each its own JAX_PROCESS_ID" in said(j) for j in joining)


def test_a_process_of_another_run_is_sent_away_and_the_run_goes_on(start: Start) -> None:
    first = start(0)
    stranger = said(start(1, run="runs/other"))
    assert "trains runs/mine and not runs/other" in stranger
    joining = [start(1), start(2)]
    assert sorted(first.result(30)) == [1, 2]
    assert all(list(one.result(30)) == [0] for one in joining)


@pytest.mark.parametrize("text", [b"GET / HTTP/1.0\r\n\r\n", b"", b"[]\n", b'{"run": 3}\n', b"7\n"])
def test_a_visitor_that_is_no_trainer_changes_nothing(
    start: Start, address: Address, text: bytes
) -> None:
    first = start(0, count=2)
    visitor = greet(address, text)
    if not text:
        visitor.close()
    start(1, count=2).result(30)
    assert list(first.result(30)) == [1]


def test_one_that_died_while_it_waited_may_come_again(start: Start, address: Address) -> None:
    first = start(0)
    greet(address, hello()).close()
    joining = [start(2)]
    time.sleep(0.5)
    joining.append(start(1))
    assert sorted(first.result(30)) == [1, 2]
    assert all(one.result(30) for one in joining)


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
