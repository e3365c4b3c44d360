"""Messages between the processes of a run: lines of flat JSON, bounded, on a socket.

What a stranger sends must cost little and break nothing: a line that no process of a run would send
raises Rejected and nothing else.
"""

import json
import socket
import time
from typing import Any, NoReturn

LONGEST_LINE = 8192
LONGEST_TEXT = 1000  # 6 bytes a character at most: a line holds one such text and a host's name
GREATEST_NUMBER = 2**20
SHORTEST_WAIT_SECONDS = 0.001  # 0 would mean not to wait at all
# A host that vanishes while it waits for the others is noticed after 10 + 3 * 10 seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

Message = dict[str, str | int]


class Rejected(Exception):
    """What came is no message of a process of a run; says why."""


def parse(line: bytes) -> Message:
    """The message of a line without its end; raises Rejected."""
    try:
        found = json.loads(line.decode("utf-8", "surrogatepass"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise Rejected("it sent a line that is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Rejected("it sent a line that is not JSON") from None
    if not isinstance(found, dict):
        raise Rejected("it sent JSON that is not an object")
    for value in found.values():
        _check_value(value)
    return found


def _check_value(value: Any) -> None:
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise Rejected(f"it sent a text of more than {LONGEST_TEXT} characters")
    elif not isinstance(value, int) or isinstance(value, bool):
        raise Rejected("it sent a value that is neither a text nor a whole number")
    elif not 0 <= value <= GREATEST_NUMBER:
        raise Rejected(f"it sent a number that is not from 0 to {GREATEST_NUMBER}")


def _refuse_constant(name: str) -> NoReturn:
    raise Rejected(f"it sent {name}")


def text(message: Message, field: str) -> str:
    """A field that holds a text; raises Rejected."""
    value = message.get(field)
    if not isinstance(value, str):
        raise Rejected(f"it sent no text as {field!r}")
    return value


def number(message: Message, field: str) -> int:
    """A field that holds a whole number; raises Rejected."""
    value = message.get(field)
    if not isinstance(value, int):
        raise Rejected(f"it sent no whole number as {field!r}")
    return value


def shorten(sentence: str) -> str:
    """A sentence as one line that fits into a message."""
    line = " ".join(sentence.split())
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 1]}…"


def shown(said: str) -> str:
    """What another process said, on one line whatever it holds."""
    return said if said.isprintable() else ascii(said)


class Connection:
    """A socket that carries messages."""

    def __init__(self, connected: socket.socket, address: str):
        self.address = self.name = address
        self._socket = connected
        self._bytes = b""
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: str | int) -> None:
        """Raises OSError where the other end is gone."""
        line = json.dumps(message, ensure_ascii=False)
        self._socket.sendall(line.encode("utf-8", "surrogatepass") + b"\n")

    def receive(self, seconds: float) -> Message | None:
        """The next message; None at the end.

        Raises Rejected, and OSError, among them TimeoutError when no whole message came in time.
        """
        deadline = time.monotonic() + seconds
        while (message := self.next()) is None:
            self._socket.settimeout(max(deadline - time.monotonic(), SHORTEST_WAIT_SECONDS))
            if not self.read():
                return None
        return message

    def read(self) -> bool:
        """Takes in what has come, for `next`; returns False at the end. Raises OSError."""
        piece = self._socket.recv(LONGEST_LINE)
        self._bytes += piece
        return bool(piece)

    def next(self) -> Message | None:
        """The next message of what was read; None if it is not whole yet. Raises Rejected."""
        line, end, rest = self._bytes.partition(b"\n")
        if len(line) >= LONGEST_LINE:
            raise Rejected(f"it sent a line of {LONGEST_LINE} bytes or more")
        if not end:
            return None
        self._bytes = rest
        return parse(line)

    def is_closed(self) -> bool:
        """Whether the other end is gone; call it only while no message is expected."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()


def tell(connection: Connection, **message: str | int) -> None:
    """Sends a message; ignores a connection that is gone, which its reader notices."""
    try:
        connection.send(**message)
    except OSError:
        return
