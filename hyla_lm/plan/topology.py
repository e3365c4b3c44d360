"""TPU v5e slices to compile for without TPUs: libtpu's settings, devices, and chip facts."""

import importlib.util
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyla_lm.config import UserError

# Slices that Cloud TPU offers, to the chips of one host in each direction.
TOPOLOGIES = {
    "1x1": (1, 1, 1),
    "2x2": (2, 2, 1),
    "2x4": (2, 4, 1),
    **{shape: (2, 2, 1) for shape in ("4x4", "4x8", "8x8", "8x16", "16x16")},
}
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the lock is for TPU devices
}
BUNDLES = "^packed-bundles-post-ra|deduplication"


@dataclass(frozen=True)
class Chip:
    """What one chip can do.

    Peak, HBM and ICI bandwidth: https://cloud.google.com/tpu/docs/v5e (197 TFLOP/s in bfloat16,
    16 GB at 819 GB/s, 1,600 Gbit/s over four links). The compiler gives programs 15.75 GiB of the
    HBM and says so when they need more. The clock follows from the peak: four matrix units of
    128 x 128 multiply-adds reach 197e12 FLOP/s at 1.5 GHz.
    """

    name: str = "TPU v5e"
    peak_flops: float = 197e12
    hbm_bytes: float = 15.75 * 2**30
    hbm_bytes_per_second: float = 819e9
    ici_bytes_per_second: float = 1600e9 / 8
    clock_hz: float = 1.5e9


V5E = Chip()


@dataclass(frozen=True)
class Slice:
    """A v5e slice such as v5e:4x4; raises UserError for one that is not offered."""

    name: str

    def __post_init__(self) -> None:
        generation, _, shape = self.name.partition(":")
        if generation != "v5e" or shape not in TOPOLOGIES:
            known = ", ".join(f"v5e:{shape}" for shape in TOPOLOGIES)
            raise UserError(f"--topology={self.name} is not known: give one of {known}.")

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.name.removeprefix("v5e:").split("x")
        return int(rows), int(columns)

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def ring_bytes_per_second(self) -> float:
        """Bytes a second that a chip sends around rings; only the full pod is a torus."""
        return V5E.ici_bytes_per_second / (1 if self.shape == (16, 16) else 2)

    def devices(self, slices: int = 1) -> list[Any]:
        """The devices of `slices` of them, for compiling only; raises UserError without libtpu."""
        check_libtpu()
        from jax.experimental import topologies

        described = topologies.get_topology_desc(
            platform="tpu",
            topology_name=self.name,
            chips_per_host_bounds=TOPOLOGIES[self.name.removeprefix("v5e:")],
            num_slices=slices,
        )
        return list(described.devices)


def check_libtpu() -> None:
    """Raises UserError if libtpu, the compiler for TPU, is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "libtpu, the compiler for TPU, is not installed: run pip install 'hyla_lm[tpu]' "
            "(Linux on x86-64; it needs no TPU)."
        )


@contextmanager
def libtpu_settings(dumps: Path | None, passes: str = BUNDLES) -> Iterator[None]:
    """Sets libtpu up for a machine without TPUs, to write its programs to `dumps`; load it inside.

    libtpu reads LIBTPU_INIT_ARGS once. The variable is restored, since JAX makes the keys of its
    compilation cache from it.
    """
    before = os.environ.get("LIBTPU_INIT_ARGS")
    os.environ.update(ENVIRONMENT)
    if dumps is not None:
        flags = (
            f"--xla_jf_dump_to={dumps} --xla_jf_dump_llo_text=true "
            f"--xla_jf_dump_llo_pass_label_regex={passes}"
        )
        os.environ["LIBTPU_INIT_ARGS"] = " ".join(filter(None, [before, flags]))
    try:
        yield
    finally:
        os.environ.pop("LIBTPU_INIT_ARGS", None)
        if before is not None:
            os.environ["LIBTPU_INIT_ARGS"] = before
