"""Processes that share a secret prove it to each other."""

import json
import logging
import socket

import pytest

from hyla_lm.parallel.messages import LONGEST_LINE
from hyla_lm.parallel.secret import proof
from tests.parallel.joining import Address, Start, greet, hello, logged, said

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
