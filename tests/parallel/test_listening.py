"""Process 0 listens where its address is."""

import logging
import socket
from contextlib import suppress

import pytest

from hyla_lm.parallel import listening
from tests.parallel.processes import free_port


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
