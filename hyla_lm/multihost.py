"""The processes of one run: how they find each other, and what they tell each other."""

import hashlib
import json
import os
from collections.abc import Mapping
from glob import glob
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from hyla_lm.config import UserError
from hyla_lm.input.share import Share
from hyla_lm.mesh import batch_sharding

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")


def initialize() -> None:
    """Joins the other processes where the environment says that there are several.

    That is a TPU host, whose slice JAX finds by itself, or JAX_COORDINATOR_ADDRESS with
    JAX_NUM_PROCESSES and JAX_PROCESS_ID. JAX ends the process if the others do not come.
    """
    is_tpu_host = find_spec("libtpu") is not None and any(map(glob, TPU_DEVICES))
    if jax.distributed.is_initialized():
        return
    if COORDINATOR in os.environ:
        count, index = (_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
        jax.distributed.initialize(num_processes=count, process_id=index)
    elif is_tpu_host:
        jax.distributed.initialize()


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    if not value.isdigit():
        raise UserError(f"{name} = {value!r} must be a whole number: correct the environment.")
    return int(value)


def is_lead() -> bool:
    """Whether this is the process that writes logs and speaks."""
    return jax.process_index() == 0


def share_of(mesh: Mesh, batch_size: int) -> Share:
    """The rows of each global batch whose devices are this process's."""
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
    return Share(parts.index(mine), len(parts), mine)


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


def gather_shares(value: Any, share: Share) -> list[Any]:
    """Every share's value, in the order of shares."""
    by_share = {index: entry for index, entry in gather((share.index, value))}
    return [by_share[index] for index in range(share.count)]


def check_agreement(facts: Mapping[str, Any]) -> None:
    """Raises UserError, in every process, where one differs from the first in what it runs."""
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
