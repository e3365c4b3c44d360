"""The processes of one run: joining, barriers, their shards of a batch, and exchange of values."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import glob
from importlib.util import find_spec
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from hyla_lm.ending import Preempted
from hyla_lm.errors import UserError
from hyla_lm.parallel import devices
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.parallel.listening import own_addresses
from hyla_lm.parallel.liveness import Liveness
from hyla_lm.parallel.mesh import batch_sharding
from hyla_lm.parallel.rendezvous import Place, join
from hyla_lm.parallel.secret import VARIABLE as JOIN_SECRET

COORDINATOR, BIND = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"
# The port that JAX takes on TPU hosts, and GKE's variables for several slices with their defaults.
GKE_PORT, GKE_SLICES = 8482, (("NUM_SLICES", "1"), ("SLICE_ID", "0"))
JOIN_SECONDS, BARRIER_SECONDS, SILENCE_SECONDS = 300, 1800, 25
# JAX aborts the others when a host has not answered for so long, counted from its last heartbeat,
# which may have been half as long ago. Where pings tell of silence, that must come later.
HEARTBEAT_SECONDS, LATE_HEARTBEAT_SECONDS = 60, 600
LONGEST_SILENCE_SECONDS = LATE_HEARTBEAT_SECONDS // 3

_liveness = Liveness({}, 0, BARRIER_SECONDS, SILENCE_SECONDS)


@contextmanager
def joined(run: str) -> Iterator[None]:
    """Joins the processes that the environment names, for the length of the block.

    `run` identifies the run: processes of another one are refused. The environment is
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or GKE's variables for hosts of
    TPU slices; on other TPU hosts JAX finds the slice by itself. Raises UserError if a process does
    not come within HYLA_LM_JOIN_SECONDS. An error in one process ends all of them, as does silence
    of one for HYLA_LM_SILENCE_SECONDS. Where HYLA_LM_JOIN_SECRET is set, all must know the same.
    A run that was asked to stop leaves JAX's service before process 0 ends: whoever ended after it
    would be killed with another status.
    """
    global _liveness
    place = _place()
    if place is None:
        if _is_tpu_host() and not jax.distributed.is_initialized():
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
        devices.check_devices()
        try:
            yield
        except Preempted:  # all processes at the same step
            jax.distributed.shutdown()
            raise
        return
    limit = _number("HYLA_LM_BARRIER_SECONDS", BARRIER_SECONDS)
    silence = _silence_seconds()
    connections = join(
        place,
        run,
        _number("HYLA_LM_JOIN_SECONDS", JOIN_SECONDS),
        os.environ.get(JOIN_SECRET, ""),
    )
    _liveness = Liveness(connections, place.index, limit, silence)
    stop: Preempted | None = None
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.count,
            place.index,
            heartbeat_timeout_seconds=LATE_HEARTBEAT_SECONDS,
            coordinator_bind_address=_bind_address(place),
        )
        devices.check_devices()
        try:
            yield
        except Preempted as asked:  # all processes at the same step
            stop = asked
        barrier("the end of the run")
        jax.distributed.shutdown()
    except BaseException as error:
        _liveness.fail(error)
    _liveness.leave()
    if stop is not None:
        raise stop


def barrier(name: str) -> None:
    """Waits for all processes; ends them after HYLA_LM_BARRIER_SECONDS, naming the missing ones."""
    _liveness.barrier(name)


def end(sentence: str, status: int) -> NoReturn:
    """Ends this process, whatever it waits for, and tells the others why; never returns."""
    _liveness.stop(sentence, status)


def _bind_address(place: Place) -> str | None:
    """Where JAX's service listens: as process 0 does, or as JAX chooses."""
    is_chosen = BIND in os.environ or not own_addresses(place.address[0])
    return None if is_chosen else place.coordinator


def _silence_seconds() -> int:
    seconds = _number("HYLA_LM_SILENCE_SECONDS", SILENCE_SECONDS)
    if not 0 < seconds <= LONGEST_SILENCE_SECONDS:
        raise UserError(
            f"HYLA_LM_SILENCE_SECONDS = {seconds} must be from 1 to {LONGEST_SILENCE_SECONDS}: "
            "correct the environment."
        )
    return seconds


def _place() -> Place | None:
    """This process's place by the environment; None if the environment names no other process."""
    if COORDINATOR in os.environ:
        count, index = _number("JAX_NUM_PROCESSES"), _number("JAX_PROCESS_ID")
        return Place(os.environ[COORDINATOR], count, index)
    return gke_place(os.environ) if _is_tpu_host() else None


def gke_place(environment: Mapping[str, str]) -> Place | None:
    """The place by GKE's variables for hosts of TPU slices, counted slice after slice."""
    hosts = environment.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if "TPU_WORKER_ID" not in environment or hosts == [""]:
        return None
    first = environment.get("MEGASCALE_COORDINATOR_ADDRESS", hosts[0]).split(":")[0]
    slices, here = (int(environment.get(f"MEGASCALE_{n}", d)) for n, d in GKE_SLICES)
    index = here * len(hosts) + int(environment["TPU_WORKER_ID"])
    return Place(f"{first}:{GKE_PORT}", slices * len(hosts), index)


def _is_tpu_host() -> bool:
    return find_spec("libtpu") is not None and any(map(glob, devices.TPU_FILES))


def _number(name: str, default: int | None = None) -> int:
    value = os.environ.get(name, "" if default is None else str(default))
    if not value.isdigit():
        raise UserError(f"{name} = {value!r} must be a whole number: correct the environment.")
    return int(value)


def is_lead() -> bool:
    """Whether this is the process that writes logs and prints."""
    return jax.process_index() == 0


def shard_of(mesh: Mesh, batch_size: int, seed: int = 0) -> BatchShard:
    """The rows of each global batch that this process's devices hold."""
    rows: dict[int, set[int]] = {index: set() for index in range(jax.process_count())}
    placed: Mapping[Any, Any] = batch_sharding(mesh).devices_indices_map((batch_size,))
    for device, (part,) in placed.items():
        rows[device.process_index].update(range(*part.indices(batch_size)))
    parts = sorted({tuple(sorted(held)) for held in rows.values()})
    mine = tuple(sorted(rows[jax.process_index()]))
    if sum(map(len, parts)) != batch_size:
        raise UserError(
            "the mesh gives processes parts of the batch that overlap: "
            "let MeshConfig.model divide, or be a multiple of, the devices of a process."
        )
    return BatchShard(batch_size, seed, parts.index(mine), len(parts), mine)


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


def check_agreement(facts: Mapping[str, Any]) -> None:
    """Raises UserError in every process if one of them has other facts than the first."""
    hashes = {name: _hash(value) for name, value in facts.items()}
    everyone = gather(hashes)
    for name in hashes:
        odd = [i for i, other in enumerate(everyone) if other[name] != everyone[0][name]]
        if odd:
            raise UserError(
                f"process {odd[0]} runs with another {name} than process 0: "
                "give all hosts the same command, code and data."
            )


def on_host(tree: Any) -> Any:
    """Whole arrays of all devices in this process's memory; all processes must call this."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
