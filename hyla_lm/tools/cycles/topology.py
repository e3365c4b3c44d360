"""TPU slices to compile for without TPUs: libtpu's settings, and devices."""

import importlib.util
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyla_lm.attention.chips import CHIPS, Chip
from hyla_lm.errors import UserError
from hyla_lm.package import install

# Slices that Cloud TPU offers, to the chips of one host in each direction.
_FLAT = {
    "1x1": (1, 1, 1),
    "2x2": (2, 2, 1),
    "2x4": (2, 4, 1),
    **{shape: (2, 2, 1) for shape in ("4x4", "4x8", "8x8", "8x16", "16x16")},
}
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
TOPOLOGIES = {f"v5e:{shape}": host for shape, host in _FLAT.items()}
TOPOLOGIES |= {f"v5p:{shape}": (2, 2, 1) for shape in _CUBES}
TOPOLOGIES |= {f"v6e:{shape}": host for shape, host in _FLAT.items()}
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the lock is for TPU devices
}
BUNDLES = "^packed-bundles-post-ra|deduplication"


@dataclass(frozen=True)
class Slice:
    """Slices such as v5e:4x4, as many as `count`; raises UserError for one that is not offered."""

    name: str
    count: int = 1

    def __post_init__(self) -> None:
        if self.name not in TOPOLOGIES:
            raise UserError(
                f"--topology={self.name} is not known: give one of {', '.join(TOPOLOGIES)}."
            )
        if self.count < 1:
            raise UserError(f"--slices={self.count} must be at least 1.")

    @property
    def chip(self) -> Chip:
        return CHIPS[self.name.partition(":")[0]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.name.partition(":")[2].split("x"))

    @property
    def chips(self) -> int:
        return math.prod(self.shape) * self.count

    @property
    def is_torus(self) -> bool:
        """Whether links close rings: on a full pod of v5e or v6e, and on whole cubes of v5p."""
        if len(self.shape) == 2:
            return self.shape == (16, 16)
        return all(size % 4 == 0 for size in self.shape)

    @property
    def ring_bytes_per_second(self) -> float:
        """Bytes per second of one chip around rings: half of its links' where none close."""
        return self.chip.ici_bytes_per_second / (1 if self.is_torus else 2)

    def devices(self) -> list[Any]:
        """The devices of all slices, for compiling only; call `set_up_libtpu` before."""
        from jax.experimental import topologies

        described = topologies.get_topology_desc(
            platform="tpu",
            topology_name=self.name,
            chips_per_host_bounds=TOPOLOGIES[self.name],
            num_slices=self.count,
        )
        return list(described.devices)


def set_up_libtpu(dumps: Path) -> None:
    """Sets libtpu up for a machine without TPUs, to write its programs to `dumps`.

    libtpu reads the environment once, when it is loaded. Raises UserError if it is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"libtpu, the compiler for TPU, is not installed: {install('tpu')} "
            "(Linux on x86-64; it needs no TPU)."
        )
    os.environ.update(ENVIRONMENT)
    flags = (
        f"--xla_jf_dump_to={dumps} --xla_jf_dump_llo_text=true "
        f"--xla_jf_dump_llo_pass_label_regex={BUNDLES}"
    )
    given = os.environ.get("LIBTPU_INIT_ARGS")
    os.environ["LIBTPU_INIT_ARGS"] = " ".join(filter(None, [given, flags]))
