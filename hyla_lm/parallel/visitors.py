"""Process 0 admits the processes of its run, and sends away whoever else comes to its port.

One loop hears all visitors, so that a silent or slow one costs nobody else time.
"""

import logging
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hyla_lm.parallel import secret
from hyla_lm.parallel.messages import (
    Connection,
    Message,
    Rejected,
    number,
    shorten,
    shown,
    tell,
    text,
)

HELLO_SECONDS = 20.0
MOST_AT_ONCE = 64  # visitors who have not said all; when more come the oldest is sent away
MOST_LOGGED, MOST_NAMED = 20, 3

log = logging.getLogger(__name__)


class Refused(Exception):
    """A process that may not join; the sentence is told to it and logged."""


@dataclass(frozen=True)
class Expected:
    """Who may join: processes of `run`, `count` with process 0, that know the secret if any."""

    coordinator: str
    run: str
    count: int
    secret: str = ""


@dataclass(eq=False)
class Visitor:
    """One who has connected and is not admitted yet; `until` then it has to say all."""

    connection: Connection
    until: float
    hello: Message = field(default_factory=dict)
    challenge: str = ""

    def __str__(self) -> str:
        return f"process {self.hello['index']} ({self.connection.name})"


class Visitors:
    """Those who come to process 0's sockets.

    `come` has the connections of the admitted, `refusals` what the first of the refused were told.
    """

    def __init__(self, expected: Expected, servers: Sequence[socket.socket]):
        self.come: dict[int, Connection] = {}
        self.refusals: dict[str, None] = {}
        self._expected, self._servers = expected, servers
        self._waiting: list[Visitor] = []
        self._sent_away = 0
        self._selector = selectors.DefaultSelector()
        for server in servers:
            server.setblocking(False)
            self._selector.register(server, selectors.EVENT_READ)

    def await_all(self, deadline: float) -> bool:
        """Whether all were there at once before the deadline, and none had died while it waited."""
        while len(self.come) < self._expected.count - 1:
            if time.monotonic() >= deadline:
                return False
            until = min([deadline, *(visitor.until for visitor in self._waiting[:1])])
            for key, _ in self._selector.select(max(until - time.monotonic(), 0)):
                self._attend(key)
            while self._waiting and time.monotonic() >= self._waiting[0].until:
                self._send_away(self._waiting[0], f"it did not join in {HELLO_SECONDS:g} s")
        return True

    def close(self) -> None:
        """Stops listening, and leaves those who are not admitted."""
        self._selector.close()
        for server in self._servers:
            server.close()
        for visitor in self._waiting:
            visitor.connection.close()

    def _attend(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.fileobj, socket.socket):
            self._open(key.fileobj)
        elif key.data in self._waiting:
            self._hear(key.data)
        elif isinstance(key.data, int) and self.come.get(key.data) is key.fileobj:
            self._leave(key.data)

    def _open(self, server: socket.socket) -> None:
        try:
            connected, address = server.accept()
            connection = Connection(connected, address[0])
        except OSError:
            return  # it was gone before it was answered
        if len(self._waiting) >= MOST_AT_ONCE:
            self._send_away(self._waiting[0], f"{MOST_AT_ONCE} came before it had joined")
        visitor = Visitor(connection, time.monotonic() + HELLO_SECONDS)
        self._waiting.append(visitor)
        self._selector.register(connection, selectors.EVENT_READ, visitor)

    def _hear(self, visitor: Visitor) -> None:
        try:
            if not visitor.connection.read():
                raise Rejected("it closed the connection before it had joined")
            while visitor in self._waiting and (message := visitor.connection.next()) is not None:
                self._answer(visitor, message)
        except Refused as refusal:
            tell(visitor.connection, failed=shorten(str(refusal)))
            if len(self.refusals) < MOST_NAMED:
                self.refusals[str(refusal)] = None
            self._send_away(visitor, str(refusal))
        except (Rejected, OSError) as error:
            self._send_away(visitor, str(error))

    def _answer(self, visitor: Visitor, message: Message) -> None:
        if not visitor.hello:
            self._greet(visitor, message)
        elif not secret.is_proof(message.get("proof"), self._proof("other", visitor)):
            raise Refused(
                f"{visitor} has another {secret.VARIABLE} than process 0 at "
                f"{self._expected.coordinator}: give all processes of a run the same."
            )
        else:
            self._admit(visitor)

    def _greet(self, visitor: Visitor, hello: Message) -> None:
        number(hello, "index"), number(hello, "count")
        visitor.connection.name = shown(text(hello, "host"))
        run = text(hello, "run")
        visitor.hello = hello
        if run != self._expected.run:
            raise Refused(
                f"process 0 at {self._expected.coordinator} trains {shown(self._expected.run)} and "
                f"not {shown(run)}: correct JAX_COORDINATOR_ADDRESS or --workdir."
            )
        if ("nonce" in hello) != bool(self._expected.secret):
            first, other = ("has no", "has one") if "nonce" in hello else ("has a", "has none")
            raise Refused(
                f"process 0 at {self._expected.coordinator} {first} {secret.VARIABLE} and "
                f"{visitor} {other}: give all processes of a run the same."
            )
        if not self._expected.secret:
            self._admit(visitor)
            return
        visitor.challenge = secret.nonce()
        visitor.connection.send(nonce=visitor.challenge, proof=self._proof("first", visitor))

    def _proof(self, prover: str, visitor: Visitor) -> str:
        return secret.proof(self._expected.secret, prover, visitor.hello, visitor.challenge)

    def _admit(self, visitor: Visitor) -> None:
        index, count = number(visitor.hello, "index"), number(visitor.hello, "count")
        if count != self._expected.count or not 0 < index < count:
            raise Refused(
                f"{visitor} is one of {count} processes but process 0 one of "
                f"{self._expected.count}: give all the same JAX_NUM_PROCESSES and each its own "
                "JAX_PROCESS_ID."
            )
        if index in self.come and self.come[index].is_closed():
            self._leave(index)
        if index in self.come:
            raise Refused(
                f"{self.come[index].name} and {visitor.connection.name} both are process {index}: "
                "give each its own JAX_PROCESS_ID."
            )
        self._waiting.remove(visitor)
        self._selector.modify(visitor.connection, selectors.EVENT_READ, index)
        self.come[index] = visitor.connection
        log.info("%d of %d hosts have come", len(self.come) + 1, self._expected.count)

    def _leave(self, index: int) -> None:
        """An admitted process has ended, or says more than it should: it may come again."""
        connection = self.come.pop(index)
        self._selector.unregister(connection)
        connection.close()
        log.info("process %d (%s) is gone, which had come", index, connection.name)

    def _send_away(self, visitor: Visitor, why: str) -> None:
        self._sent_away += 1
        if self._sent_away <= MOST_LOGGED:
            log.warning("a visitor from %s was sent away: %s", visitor.connection.address, why)
        if self._sent_away == MOST_LOGGED:
            log.warning("further visitors that are sent away are not logged")
        self._waiting.remove(visitor)
        self._selector.unregister(visitor.connection)
        visitor.connection.close()
