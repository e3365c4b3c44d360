"""Processes find each other or say what is wrong; threads stand for processes."""

import logging
import re
import socket
import time

import pytest

from hyla_lm.errors import UserError
from hyla_lm.parallel import listening
from hyla_lm.parallel.messages import LONGEST_TEXT
from hyla_lm.parallel.rendezvous import Place
from hyla_lm.parallel.visitors import Expected, Visitors
from tests.parallel.joining import RUN, Address, Start, greet, hello, logged, said


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
