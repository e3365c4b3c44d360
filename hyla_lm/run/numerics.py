"""What decides the bits of a run besides its configuration, kept with each checkpoint."""

import hashlib
import os
import re
from typing import Any

import jax
from jax.sharding import Mesh

HASH_DIGITS = 16
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# Where an operation was written in which file: a line that moves changes it, and no number.
PLACES = re.compile(
    r", metadata=\{[^}]*\}|^(FileNames|FunctionNames|FileLocations|StackFrames)$.*?^$", re.M | re.S
)


def numerics_of(mesh: Mesh, compiled_step: str = "") -> dict[str, Any]:
    """Devices in the order of the mesh, flags, and the hash of the step, where it is compiled."""
    devices = list(mesh.devices.flat)
    cores = _cores() if devices[0].platform == "cpu" else None
    return {
        "device_kind": devices[0].device_kind,
        "devices": " ".join(f"{device.process_index}.{device.id}" for device in devices),
        "mesh": {axis: size for axis, size in mesh.shape.items()},
        "cpu_cores": cores,
        "matmul_precision": jax.config.values["jax_default_matmul_precision"],
        "compiled_step": compiled_step,
        **{name: os.environ.get(name, "") for name in FLAGS},
    }


def _cores() -> int | None:
    """The cores that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def hash_of_step(compiled: jax.stages.Compiled) -> str:
    """The hash of the optimized instructions of a compiled step, wherever in files they stand."""
    text = PLACES.sub("", compiled.as_text() or "")
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
