"""Liveness of the processes of a run: each learns when another is gone or silent; named barriers.

The connections of hyla_lm.parallel.rendezvous stay open. The connection of a process that dies
closes: process 0 sees it at once and tells the others, which end with a message instead of waiting
in a collective. One that is stopped, or whose host is gone, no longer sends its pings. Process 0
also counts the processes that have come to a barrier.
"""

import os
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import NoReturn

from hyla_lm.ending import sentence_of, status_of, told
from hyla_lm.errors import UserError
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

EXIT_STATUS = 69  # EX_UNAVAILABLE: another process is gone; the same command goes on
USER_MISTAKE = 2
# JAX aborts processes when process 0 is gone: it gives them time to print the reason first.
LAST_WORD_SECONDS = 1.0
# An error in this process is often due to the end of another, whose message comes within this time.
CAUSE_SECONDS = 3.0
PINGS = 5  # that a process sends in the time after which it counts as silent
GOES_ON = "the same command goes on from the newest checkpoint."


class Liveness:
    """Watches this process's connections to the others, each in a thread of its own.

    A process that sends nothing for `silence_seconds` counts as gone.
    """

    def __init__(
        self,
        connections: Mapping[int, Connection],
        index: int,
        barrier_seconds: float,
        silence_seconds: float,
    ):
        self._connections, self._index = connections, index
        self._seconds, self._silence = barrier_seconds, silence_seconds
        self._changed = threading.Condition()
        self._arrived: dict[str, set[int]] = defaultdict(set)
        self._passed: set[str] = set()
        self._left: set[int] = set()
        self._timers: dict[str, threading.Timer] = {}
        self._ending = threading.Lock()
        for other, connection in connections.items():
            threading.Thread(target=self._listen, args=(other, connection), daemon=True).start()
        if connections:
            threading.Thread(target=self._ping, daemon=True).start()

    def barrier(self, name: str) -> None:
        """Waits until every process has come here; ends them all if one does not come in time."""
        if not self._connections:
            return
        if self._index:
            tell(self._connections[0], at=name)
        else:
            self._arrive(0, name)
        with self._changed:
            self._changed.wait_for(lambda: name in self._passed)

    def leave(self) -> None:
        """Tells the others that this process ends in good order, so that its end is no alarm."""
        for connection in self._connections.values():
            tell(connection, left=1)

    def fail(self, error: BaseException) -> NoReturn:
        """Ends this process with an error, and tells the others; never returns.

        A plain exit would hang: JAX would wait for the others, which wait for this process.
        """
        if not isinstance(error, UserError):
            time.sleep(CAUSE_SECONDS)
        self.stop(sentence_of(error), status_of(error), told(error))

    def stop(self, sentence: str, status: int, everything: str = "") -> NoReturn:
        """Ends this process, and tells the others the first line of why; never returns."""
        first = sentence.partition("\n")[0]
        why = f"process {self._index} ({socket.gethostname()}) ended: {first}"
        self._end(why, status, f"hyla-lm: {everything or sentence}\n")

    def _ping(self) -> None:
        while True:
            time.sleep(self._silence / PINGS)
            for connection in self._connections.values():
                tell(connection, ping=1)

    def _listen(self, other: int, connection: Connection) -> None:
        why = f"is gone; {GOES_ON}"
        try:
            while (message := self._next(connection)) is not None:
                self._handle(other, message)
        except TimeoutError:
            why = f"has not answered for {self._silence:g} s; {GOES_ON}"
        except Rejected as error:
            why = f"sends what no process of a run would: {error}."
        except OSError:
            pass  # as at the end of what it sends
        if other not in self._left:
            self._end(f"process {other} ({connection.name}) {why}", EXIT_STATUS)

    def _next(self, connection: Connection) -> Message | None:
        """The next message; raises TimeoutError when none has come for long enough.

        The wait is cut into pieces, so that the time in which this process itself was stopped does
        not count: processes that are stopped together go on together.
        """
        for _ in range(PINGS):
            try:
                return connection.receive(self._silence / PINGS)
            except TimeoutError:
                continue
        raise TimeoutError

    def _handle(self, other: int, message: Message) -> None:
        if "failed" in message:
            is_mistake = number(message, "status") == USER_MISTAKE
            status = USER_MISTAKE if is_mistake else EXIT_STATUS
            self._end(shown(text(message, "failed")), status)
        elif "at" in message:
            self._arrive(other, text(message, "at"))
        elif "passed" in message:
            self._pass(text(message, "passed"))
        elif "left" in message:
            self._left.add(other)

    def _arrive(self, index: int, name: str) -> None:
        """Counts a process at a barrier, on process 0; the first one starts the clock."""
        with self._changed:
            if name not in self._timers:
                self._timers[name] = threading.Timer(self._seconds, self._expire, [name])
                self._timers[name].daemon = True
                self._timers[name].start()
            self._arrived[name].add(index)
            if len(self._arrived[name]) <= len(self._connections):
                return
            self._timers[name].cancel()
        for connection in self._connections.values():
            tell(connection, passed=name)
        self._pass(name)

    def _pass(self, name: str) -> None:
        with self._changed:
            self._passed.add(name)
            self._changed.notify_all()

    def _expire(self, name: str) -> None:
        missing = {0, *self._connections} - self._arrived[name]
        if not missing:
            return
        named = ", ".join(
            f"{index} ({self._connections[index].name})" if index else "0"
            for index in sorted(missing)
        )
        sentence = f"process {named} did not come to {name} within {self._seconds:g} s of the first"
        self._end(f"{sentence}: see its log.", EXIT_STATUS)

    def _end(self, sentence: str, status: int, printed: str = "") -> NoReturn:
        """Ends this process, even if it is waiting, and tells the others why; never returns."""
        self._ending.acquire()  # never released: the first thread to come here ends the process
        try:
            others = USER_MISTAKE if status == USER_MISTAKE else EXIT_STATUS
            for connection in self._connections.values():
                tell(connection, failed=shorten(sentence), status=others)
            # In one piece: JAX may write at the same moment.
            sys.stderr.write(printed or f"hyla-lm: {sentence}\n")
            sys.stderr.flush()
            sys.stdout.flush()
            if self._index == 0:
                time.sleep(LAST_WORD_SECONDS)
        finally:
            os._exit(status)
