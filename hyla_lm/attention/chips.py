"""Where traced code will run, and what kernels and plans need to know of each TPU chip."""

from dataclasses import dataclass

import jax


def platform() -> str:
    """Where traced code will run: by the mesh in use, or else by JAX's default device."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


@dataclass(frozen=True)
class Chip:
    """What one chip can do; bytes a second of ICI are all links' in one direction.

    Sources: https://docs.cloud.google.com/tpu/docs/v5e, v5p and v6e for peaks in bfloat16, HBM, ICI
    (half of the bidirectional figure) and the network between slices (DCN: of a host's cards, by
    its chips). `hbm_bytes` is what the compiler gives programs, as it says when they need more.
    VMEM, of one core, is that of jax.experimental.pallas. The clocks of v5e and v5p follow from
    peak and matrix units; that of v6e is an assumption: with it the compiler's estimate of HBM
    traffic is the same share of the bandwidth as on v5e.
    """

    generation: str
    device_kind: str
    vmem_bytes: int
    peak_flops: float
    hbm_bytes: float
    hbm_bytes_per_second: float
    ici_bytes_per_second: float
    dcn_bytes_per_second: float
    clock_hz: float

    @property
    def kernel_vmem_bytes(self) -> int:
        """The VMEM that a kernel may take; the rest is the compiler's."""
        return self.vmem_bytes // 8 * 7


GIB = 2**30
V5E = Chip(
    generation="v5e",
    device_kind="TPU v5 lite",
    vmem_bytes=128 * 2**20,
    peak_flops=197e12,
    hbm_bytes=15.75 * GIB,
    hbm_bytes_per_second=819e9,
    ici_bytes_per_second=200e9,
    dcn_bytes_per_second=2 * 100e9 / 8 / 8,
    clock_hz=1.5e9,
)
V5P = Chip(
    generation="v5p",
    device_kind="TPU v5",
    vmem_bytes=64 * 2**20,
    peak_flops=459e12,
    hbm_bytes=95.74 * GIB,
    hbm_bytes_per_second=2765e9,
    ici_bytes_per_second=600e9,
    dcn_bytes_per_second=50e9 / 8,
    clock_hz=1.75e9,
)
V6E = Chip(
    generation="v6e",
    device_kind="TPU v6 lite",
    vmem_bytes=128 * 2**20,
    peak_flops=918e12,
    hbm_bytes=31.25 * GIB,
    hbm_bytes_per_second=1638e9,
    ici_bytes_per_second=400e9,
    dcn_bytes_per_second=4 * 200e9 / 8 / 8,
    clock_hz=1.75e9,
)
CHIPS = {chip.generation: chip for chip in (V5E, V5P, V6E)}


def chip_in_use() -> Chip:
    """The chip of the mesh in use, or of the default device; v5e for one not in the table."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    kind = device.device_kind if device is not None else jax.devices()[0].device_kind
    return next((chip for chip in CHIPS.values() if chip.device_kind == kind), V5E)
