"""The processes of a run find each other before JAX starts; errors say which is missing or differs.

Process 0 listens on the port after the coordinator's. The others connect and say who they are; once
all have come, process 0 tells each to go on. hyla_lm.parallel.liveness keeps the connections.
"""

import json
import logging
import socket
import time
from dataclasses import dataclass
from typing import Any

from hyla_lm.config import UserError

HELLO_SECONDS = 20.0
RETRY_SECONDS = 0.25
LONGEST_LINE = 65536
# A host that vanishes without a word is noticed after 10 + 3 * 10 seconds of silence.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 40_000}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """This process's place in a run: `index` of `count`; `coordinator` is process 0's host:port."""

    coordinator: str
    count: int
    index: int

    def __post_init__(self) -> None:
        if not self.coordinator.rpartition(":")[2].isdigit():
            raise UserError(
                f"JAX_COORDINATOR_ADDRESS = {self.coordinator!r} must be HOST:PORT of process 0: "
                "correct the environment."
            )
        if not 0 <= self.index < self.count:
            raise UserError(
                f"JAX_PROCESS_ID = {self.index} must be below JAX_NUM_PROCESSES = {self.count}: "
                "correct the environment."
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where process 0 waits for the others."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port) + 1


class Connection:
    """A socket that carries JSON objects, a line each."""

    def __init__(self, connected: socket.socket, name: str):
        self.name = name
        self._socket = connected
        self._lines = connected.makefile("rb")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def send(self, **message: Any) -> None:
        """Raises OSError where the other end is gone."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None at the end. Raises OSError, and ValueError for invalid JSON."""
        self._socket.settimeout(seconds)
        line = self._lines.readline(LONGEST_LINE)
        self._socket.settimeout(None)
        return dict(json.loads(line)) if line else None

    def is_closed(self) -> bool:
        """Whether the other end is gone; call it only while no message is expected."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def join(place: Place, run: str, seconds: float) -> dict[int, Connection]:
    """Connections by process: process 0 has one to each other process, which have one to it.

    Raises UserError, in every process that has come, if one does not come in time or differs.
    """
    if place.index:
        return {0: _reach_first(place, run, seconds)}
    come: dict[int, Connection] = {}
    try:
        _await_others(place, run, seconds, come)
    except UserError as error:
        for connection in come.values():
            tell(connection, failed=str(error))
        raise
    for connection in come.values():
        tell(connection, go=True)
    return come


def tell(connection: Connection, **message: Any) -> None:
    """Sends a message; ignores a connection that is gone, which its reader notices."""
    try:
        connection.send(**message)
    except OSError:
        return


def _await_others(place: Place, run: str, seconds: float, come: dict[int, Connection]) -> None:
    deadline = time.monotonic() + seconds
    with _listen(place.address[1]) as server:
        while len(come) < place.count - 1 or _drop_gone(come):
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connected, address = server.accept()
            except TimeoutError:
                raise UserError(_missing(place, come, seconds)) from None
            connection = Connection(connected, address[0])
            try:
                _admit(place, run, connection, come)
            except UserError as error:
                tell(connection, failed=str(error))
                raise
            except (OSError, ValueError, KeyError, TypeError):
                connection.close()  # a port scanner, or a process that ended on the way
                continue
            log.info("%d of %d hosts have come", len(come) + 1, place.count)


def _drop_gone(come: dict[int, Connection]) -> bool:
    """Forgets connections that closed while waiting; returns whether there were any."""
    gone = [index for index, connection in come.items() if connection.is_closed()]
    for index in gone:
        come.pop(index).close()
    return bool(gone)


def _admit(place: Place, run: str, connection: Connection, come: dict[int, Connection]) -> None:
    hello = connection.receive(HELLO_SECONDS) or {}
    index, count, name = int(hello["index"]), int(hello["count"]), str(hello["host"])
    connection.name = name
    if hello["run"] != run:
        sentence = f"process 0 at {place.coordinator} trains {run} and not {hello['run']}"
        tell(connection, failed=f"{sentence}: correct JAX_COORDINATOR_ADDRESS or --workdir.")
        log.warning("%s asked to join, for %s: it was sent away", name, hello["run"])
        raise ValueError(sentence)
    if index in come and not come[index].is_closed():
        raise UserError(
            f"{come[index].name} and {name} both are process {index}: "
            "give each its own JAX_PROCESS_ID."
        )
    if count != place.count or not 0 < index < place.count:
        raise UserError(
            f"process {index} ({name}) is one of {count} processes but process 0 one of "
            f"{place.count}: give all the same JAX_NUM_PROCESSES and each its own JAX_PROCESS_ID."
        )
    come[index] = connection


def _missing(place: Place, come: dict[int, Connection], seconds: float) -> str:
    missing = [str(index) for index in range(1, place.count) if index not in come]
    return (
        f"{len(come) + 1} of {place.count} hosts came within {seconds:g} s, process "
        f"{', '.join(missing)} did not: see whether the same command runs there."
    )


def _listen(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=1024)
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen on port {port}, the one after the coordinator's "
            f"({error.strerror}): end what holds it or change JAX_COORDINATOR_ADDRESS."
        ) from error


def _reach_first(place: Place, run: str, seconds: float) -> Connection:
    where = "{}:{}".format(*place.address)
    connection = Connection(_connect(place, seconds, where), where)
    own = {"run": run, "index": place.index, "count": place.count, "host": socket.gethostname()}
    try:
        connection.send(**own)
        answer = connection.receive(seconds + HELLO_SECONDS)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{where} does not answer as process 0 of this run would: {error}."
        ) from error
    if answer is None:
        raise UserError(f"process 0 at {where} ended before all hosts had come: see its log.")
    if "failed" in answer:
        raise UserError(str(answer["failed"]))
    return connection


def _connect(place: Place, seconds: float, where: str) -> socket.socket:
    log.info("process %d of %d looks for process 0 at %s", place.index, place.count, where)
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(place.address, timeout=HELLO_SECONDS)
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"process {place.index} cannot reach process 0 at {where} within {seconds:g} s "
                    f"({error.strerror or error}): see whether it runs, whether "
                    "JAX_COORDINATOR_ADDRESS names it and whether the network lets both ports in."
                ) from error
        time.sleep(RETRY_SECONDS)
