"""The processes of one run: how they join, agree, exchange values, wait for each other and end.

JAX's distributed service does it: its named barriers and its key-value store. Of ours is what JAX
itself leaves to a C++ trace, a traceback of another error, or no end at all: a sentence that names
the process which is missing, silent or failed, and one status in all processes.
"""

import hashlib
import json
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import glob
from importlib.util import find_spec
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import distributed  # the service's client has no public name
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils

from hyla_lm.ending import (
    MISTAKE,
    UNAVAILABLE,
    Preempted,
    reason_of,
    say,
    sentence_of,
    status_of,
    told,
)
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.parallel.mesh import check_devices
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.signals import RESUMES, end_later
from hyla_lm.signals import end as end_now

COORDINATOR, COUNT = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"
TPU_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")
# JAX aborts with a C++ trace when its own time to join is over: the sentence comes before.
JAX_JOINS_LATER_SECONDS = 60
# Processes meet so often while they wait for a silent one. JAX aborts the others when it has heard
# no heartbeat for its own limit, counted from the last, which may be half as old: later than ours.
MEETINGS, JAX_IS_SILENT_LATER = 5, 3
# An error here is often due to the end of another process, whose reason comes within this time.
CAUSE_SECONDS = 3.0
# JAX aborts the others when process 0 is lost: it gives them time to print the reason first.
LAST_WORD_SECONDS = 1.0
LOST = re.compile(r"(UNKNOWN: )?Gloo|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED")
ENDED, HOSTS, LONG_MS = "ended", "hosts", 10**9

log = logging.getLogger(__name__)


@contextmanager
def joined(workdir: str) -> Iterator[None]:
    """Joins the processes that the environment names, for the length of the block.

    The environment is JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID; on TPU hosts
    JAX finds the others. An error in one process ends all of them, as do a process that does not
    come within HYLA_LM_JOIN_SECONDS and one that is silent for HYLA_LM_SILENCE_SECONDS. All must
    have the same `workdir`. A run that was interrupted leaves JAX's service before process 0 ends:
    whoever ended after it would be killed with another status.
    """
    global _peers
    silence = _number("HYLA_LM_SILENCE_SECONDS", 25)
    if not silence:
        raise UserError("HYLA_LM_SILENCE_SECONDS = 0 must be at least 1: correct the environment.")
    limit = _number("HYLA_LM_BARRIER_SECONDS", 1800)
    is_named = COORDINATOR in os.environ or _is_tpu_host()
    if is_named and not jax.distributed.is_initialized():
        _initialize(_number("HYLA_LM_JOIN_SECONDS", 300), silence)
    if not jax.distributed.is_initialized() or distributed.global_state.num_processes == 1:
        check_devices()
        yield
        return
    _peers = _Peers(silence, limit)
    interruption: Preempted | None = None
    try:
        check_agreement({COUNT: _peers.count, "--workdir": workdir})
        check_devices()
        try:
            yield
        except Preempted as error:  # all processes at the same step
            interruption = error
        barrier("the end of the run")
        _peers.close()
    except BaseException as error:
        _peers.fail(error)
    _peers = None
    if interruption is not None:
        raise interruption


def barrier(name: str) -> None:
    """Waits for all processes; raises Unavailable after HYLA_LM_BARRIER_SECONDS, which ends all."""
    if _peers is not None:
        _peers.barrier(name)


def end(sentence: str, status: int) -> NoReturn:
    """Ends this process, whatever it waits for, and tells the others why; never returns."""
    if _peers is not None:
        _peers.end(sentence, status, sentence)
    end_now(sentence, status)


def check_agreement(facts: Mapping[str, Any]) -> None:
    """Ends all processes if one has other facts than process 0; else waits until all have come."""
    if _peers is None:
        return
    for name, value in facts.items():
        text = json.dumps(value, sort_keys=True)
        ours = hashlib.sha256(text.encode()).hexdigest()
        theirs = _peers.first(f"agreement/{name}", ours)
        if theirs != ours:
            raise UserError(
                f"process {_peers.index} runs with another {name} than process 0: give all "
                "processes the same command, code and data."
            )
    barrier("the start of the run")


class _Peers:
    """This process among those of its run, which it watches in two threads until `close`."""

    def __init__(self, silence: float, limit: float):
        service = distributed.global_state
        self.index, self.count = service.process_id, service.num_processes
        client: Any = service.client
        self._client = client
        self._silence, self._limit = silence, limit
        self._closed, self._ending = threading.Event(), threading.Lock()
        self._host = socket.gethostname()
        self._client.key_value_set(f"{HOSTS}/{self.index}", self._host)
        for watch in (self._hear, self._meet):
            threading.Thread(target=watch, daemon=True).start()

    def barrier(self, name: str) -> None:
        try:
            self._client.wait_at_barrier(name, int(1000 * self._limit))
        except JaxRuntimeError as error:
            raise Unavailable(
                f"{self._missing(error)} did not come to {name} within {self._limit:g} s of the "
                "first: see its log."
            ) from error

    def first(self, key: str, value: str) -> str:
        """Process 0's value."""
        if self.index == 0:
            self._client.key_value_set(key, value)
            return value
        found: str = self._client.blocking_key_value_get(key, int(1000 * self._limit))
        return found

    def close(self) -> None:
        """Leaves JAX's service when all do, so that the end of a process is no alarm."""
        self._closed.set()
        jax.distributed.shutdown()

    def fail(self, error: BaseException) -> NoReturn:
        """Ends this process with an error, and tells the others; never returns.

        A plain exit would hang: JAX would wait for the others, which wait for this process.
        """
        is_own = isinstance(error, (UserError, Preempted, KeyboardInterrupt))
        if not is_own and LOST.match(str(error)):
            if missing := self._roll_call():
                sentence = f"{missing} has disconnected ({reason_of(error)}); {RESUMES}."
                self._end(sentence, UNAVAILABLE, sentence)
        elif not is_own:
            time.sleep(CAUSE_SECONDS)
        self.end(sentence_of(error), status_of(error), told(error))

    def end(self, sentence: str, status: int, printed: str) -> NoReturn:
        """Ends this process, and tells the others the first line of why; never returns."""
        first = sentence.partition("\n")[0]
        self._end(f"process {self.index} ({self._host}) ended: {first}", status, printed)

    def _end(self, sentence: str, status: int, printed: str, tells: bool = True) -> NoReturn:
        self._ending.acquire()  # never released: the first thread to come here ends the process
        try:
            say(printed)
            sys.stdout.flush()
            if tells:  # in a thread, since process 0 may not answer
                said = threading.Thread(target=self._tell, args=(sentence, status), daemon=True)
                said.start()
                said.join(LAST_WORD_SECONDS)
            if self.index == 0:
                time.sleep(LAST_WORD_SECONDS)
        finally:
            os._exit(status)

    def _tell(self, sentence: str, status: int) -> None:
        with suppress(JaxRuntimeError):  # another process was first, and its reason is heard
            others = MISTAKE if status == MISTAKE else UNAVAILABLE
            self._client.key_value_set(ENDED, f"{others} {sentence}")

    def _hear(self) -> None:
        """Ends this process when another has said why it ends, or process 0 has disconnected."""
        while not self._closed.is_set():
            try:
                reason = self._client.blocking_key_value_get(ENDED, LONG_MS)
            except JaxRuntimeError as error:
                if self._closed.is_set() or "timed out" in str(error):
                    continue
                reason = f"{UNAVAILABLE} process 0 has disconnected; {RESUMES}."
            status, _, sentence = reason.partition(" ")
            self._end(sentence, int(status), sentence, tells=False)

    def _meet(self) -> None:
        """Meets the others again and again; ends this process when one does not come in time."""
        while not self._closed.wait(self._silence / MEETINGS):
            patience = threading.Timer(
                self._silence + CAUSE_SECONDS, self._end_for, ["process 0"]
            )  # JAX itself would wait for process 0
            patience.daemon = True
            patience.start()
            try:
                self._client.wait_at_barrier("meeting", int(1000 * self._silence))
            except JaxRuntimeError as error:
                if "timed out" not in str(error):  # no service any more, which `_hear` notices
                    return
                self._end_for(self._missing(error))
            finally:
                patience.cancel()

    def _end_for(self, silent: str) -> None:
        if not self._closed.is_set():
            sentence = f"{silent} has not answered for {self._silence:g} s; {RESUMES}."
            self._end(sentence, UNAVAILABLE, sentence)

    def _roll_call(self) -> str:
        """The processes that do not come when all have lost a connection; empty if all do."""
        try:
            self._client.wait_at_barrier("roll call", int(1000 * CAUSE_SECONDS))
        except JaxRuntimeError as error:
            return self._missing(error)
        return ""

    def _missing(self, error: JaxRuntimeError) -> str:
        """The processes that JAX names as missing at a barrier, with their hosts."""
        named = re.findall(r"(?m)^\d+$", str(error).partition("timed out task names:")[2])
        if not named:
            return "another process"
        entries = self._client.key_value_dir_get(f"{HOSTS}/")
        hosts = {key.rpartition("/")[2]: host for key, host in entries}
        return "process " + ", ".join(f"{index} ({hosts.get(index, '?')})" for index in named)


_peers: _Peers | None = None


def _initialize(seconds: int, silence: int) -> None:
    """Joins JAX's service; raises UserError, or ends the process when the others do not join."""
    named = _named()
    where = named.get("coordinator_address", "process 0")
    count = named.get("num_processes")
    given = f", with the same {COUNT} ({count} here) and its own {INDEX}," if named else ""
    sentence = (
        f"not all processes of the run joined at {where} within {seconds} s: see whether the same "
        f"command runs on every host{given} and whether the network lets the port in."
    )
    if named.get("process_id") == 0:
        _check_port(where)
    timer = end_later(seconds, sentence, UNAVAILABLE)
    log.info("waits for the other processes at %s", where)
    try:
        jax.distributed.initialize(
            **named,
            initialization_timeout=seconds + JAX_JOINS_LATER_SECONDS,
            heartbeat_timeout_seconds=JAX_IS_SILENT_LATER * silence,
        )
    except (JaxRuntimeError, ValueError) as error:
        raise _no_service(where, reason_of(error)) from error
    finally:
        timer.cancel()


def _check_port(address: str) -> None:
    """Raises UserError for a port that another program holds: two runs of JAX would share it."""
    try:
        socket.create_server(("", int(address.rpartition(":")[2]))).close()
    except (OSError, OverflowError) as error:
        raise _no_service(address, str(error)) from error


def _no_service(address: str, reason: str) -> UserError:
    return UserError(
        f"JAX's service does not start at {address} ({reason}): end what holds the port, or "
        f"correct {COORDINATOR}, {COUNT} and {INDEX}."
    )


def _named() -> dict[str, Any]:
    """Where the environment says that this process stands; nothing where JAX finds it."""
    if COORDINATOR not in os.environ:
        return {}
    address = os.environ[COORDINATOR]
    if not address.rpartition(":")[2].isdigit():
        raise UserError(
            f"{COORDINATOR} = {address!r} must be HOST:PORT of process 0: correct the environment."
        )
    count, index = _number(COUNT), _number(INDEX)
    if index >= count:
        raise UserError(
            f"{INDEX} = {index} must be below {COUNT} = {count}: correct the environment."
        )
    return {"coordinator_address": address, "num_processes": count, "process_id": index}


def _is_tpu_host() -> bool:
    return find_spec("libtpu") is not None and any(map(glob, TPU_FILES))


def _number(name: str, default: int | None = None) -> int:
    value = os.environ.get(name, "" if default is None else str(default))
    if not value.isdigit():
        raise UserError(f"{name} = {value!r} must be a whole number: correct the environment.")
    return int(value)


def is_process_0() -> bool:
    """Whether this is the process that writes logs and prints."""
    return jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """Every process's JSON value, in the order of processes; all of them must call this."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(len(text)))
    padded = np.pad(text, (0, int(sizes.max()) - len(text)))
    gathered = multihost_utils.process_allgather(padded)
    return [
        json.loads(entry[:size].tobytes())
        for entry, size in zip(gathered, sizes.ravel(), strict=True)
    ]


def gather_shards(value: Any, shard: BatchShard) -> list[Any]:
    """Every shard's value, in the order of shards."""
    by_shard = {index: entry for index, entry in gather((shard.index, value))}
    return [by_shard[index] for index in range(shard.count)]


def on_host(tree: Any) -> Any:
    """Whole arrays of all devices in this process's memory; all processes must call this."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)
