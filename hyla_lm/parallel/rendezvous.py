"""The processes of a run find each other before JAX starts; errors say which is missing or differs.

Process 0 listens on the port after the coordinator's. The others connect and say who they are; once
all have come, process 0 tells each to go on. hyla_lm.parallel.liveness keeps the connections.
"""

import logging
import socket
import time
from dataclasses import dataclass

from hyla_lm.errors import UserError
from hyla_lm.parallel import secret as proofs
from hyla_lm.parallel.listening import listen
from hyla_lm.parallel.messages import (
    LONGEST_TEXT,
    SHORTEST_WAIT_SECONDS,
    Connection,
    Message,
    Rejected,
    shorten,
    shown,
    tell,
    text,
)
from hyla_lm.parallel.visitors import HELLO_SECONDS, Expected, Visitors

RETRY_SECONDS = 0.25

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


def join(place: Place, run: str, seconds: float, secret: str = "") -> dict[int, Connection]:
    """Connections by process: process 0 has one to each other process, which have one to it.

    Raises UserError in every process that has come if one does not come in time, and in one that
    differs: it is sent away, and process 0 goes on waiting. With a secret, process 0 and each other
    prove to each other that they know it.
    """
    if len(run) > LONGEST_TEXT:
        raise UserError(f"--workdir has more than {LONGEST_TEXT} characters: shorten it.")
    if place.index:
        return {0: _reach_first(place, run, seconds, secret)}
    deadline = time.monotonic() + seconds
    expected = Expected(place.coordinator, run, place.count, secret)
    visitors = Visitors(expected, listen(*place.address))
    try:
        have_come = visitors.await_all(deadline)
    finally:
        visitors.close()
    if not have_come:
        sentence = _missing(place, visitors, seconds)
        for connection in visitors.come.values():
            tell(connection, failed=shorten(sentence))
        raise UserError(sentence)
    for connection in visitors.come.values():
        tell(connection, go=1)
    return visitors.come


def _missing(place: Place, visitors: Visitors, seconds: float) -> str:
    come, refused = visitors.come, " ".join(visitors.refusals)
    missing = [str(index) for index in range(1, place.count) if index not in come]
    return (
        f"{len(come) + 1} of {place.count} hosts came within {seconds:g} s, process "
        f"{', '.join(missing)} did not: see whether the same command runs there."
        f"{' Sent away: ' if refused else ''}{refused}"
    )


def _reach_first(place: Place, run: str, seconds: float, secret: str) -> Connection:
    where = "{}:{}".format(*place.address)
    connection = Connection(_connect(place, seconds, where), where)
    hello: Message = {"run": run, "index": place.index, "count": place.count}
    hello["host"] = socket.gethostname()
    try:
        answer = _introduce(connection, hello, secret, seconds + HELLO_SECONDS)
    except (OSError, Rejected) as error:
        raise UserError(
            f"{where} does not answer as process 0 of this run would: {error}."
        ) from error
    if answer is None:
        raise UserError(f"process 0 at {where} ended before all hosts had come: see its log.")
    if "failed" in answer:
        raise UserError(shown(str(answer["failed"])))
    return connection


def _introduce(
    connection: Connection, hello: Message, secret: str, seconds: float
) -> Message | None:
    """Says hello; the answer once all have come, or why not. None if process 0 ended."""
    if not secret:
        connection.send(**hello)
        return connection.receive(seconds)
    hello["nonce"] = proofs.nonce()
    connection.send(**hello)
    answer = connection.receive(HELLO_SECONDS)
    if answer is None or "failed" in answer:
        return answer
    challenge = text(answer, "nonce")
    if not proofs.is_proof(answer.get("proof"), proofs.proof(secret, "first", hello, challenge)):
        tell(connection, failed="another secret")
        raise UserError(
            f"process 0 at {connection.address} has another {proofs.VARIABLE} than process "
            f"{hello['index']} ({hello['host']}): give all processes of a run the same."
        )
    connection.send(proof=proofs.proof(secret, "other", hello, challenge))
    return connection.receive(seconds)


def _connect(place: Place, seconds: float, where: str) -> socket.socket:
    log.info("process %d of %d looks for process 0 at %s", place.index, place.count, where)
    deadline = time.monotonic() + seconds
    while True:
        left = max(deadline - time.monotonic(), SHORTEST_WAIT_SECONDS)
        try:
            return socket.create_connection(place.address, timeout=min(left, HELLO_SECONDS))
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"process {place.index} cannot reach process 0 at {where} within {seconds:g} s "
                    f"({error.strerror or error}): see whether it runs, whether "
                    "JAX_COORDINATOR_ADDRESS names it and whether the network lets both ports in."
                ) from error
        time.sleep(RETRY_SECONDS)
