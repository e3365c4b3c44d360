"""The links between chips: how far a group of chips reaches, and how long a collective takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hyla_lm.tools.plan.collectives import Collective
from hyla_lm.tools.plan.topology import Slice

HOP_SECONDS = 1e-6
EXCHANGE_SECONDS = 50e-6
GB = 1e9


@dataclass(frozen=True)
class Links:
    """Bytes a second that a chip sends within a slice and between slices, and their latencies."""

    ici_bytes_per_second: float
    dcn_bytes_per_second: float
    hop_seconds: float = HOP_SECONDS
    exchange_seconds: float = EXCHANGE_SECONDS

    def seconds(self, collective: Collective) -> float:
        """Seconds in a step that its bytes take."""
        between = collective.between_slices
        return collective.seconds(
            self.dcn_bytes_per_second if between else self.ici_bytes_per_second
        )

    def latency(self, collective: Collective) -> float:
        """Seconds in a step before any byte counts: a sum goes the way twice."""
        ways = 2 if collective.kind == "all-reduce" else 1
        one_way = collective.hops * self.hop_seconds
        return (
            collective.times
            * ways
            * (self.exchange_seconds if collective.between_slices else one_way)
        )


def links_of(topology: Slice) -> Links:
    """The links of a topology."""
    return Links(topology.ring_bytes_per_second, topology.chip.dcn_bytes_per_second)


def places_of(devices: Iterable[Any]) -> list[tuple[int, ...]]:
    """Where each device is: its slice, then its coordinates there."""
    return [(getattr(device, "slice_index", None) or 0, *device.coords) for device in devices]


def assumptions(topology: Slice) -> list[str]:
    """What the time of collectives rests on that nobody measured, a sentence each."""
    said = [
        f"a hop between neighbouring chips takes {HOP_SECONDS * 1e6:g} microsecond; a collective "
        "goes as many hops as its group is wide, summed over the dimensions of the slice, a sum "
        "there and back"
    ]
    if topology.count > 1:
        rate = topology.chip.dcn_bytes_per_second
        said.append(
            f"between slices a chip sends {rate / GB:g} GB/s, its share of its host's "
            f"network cards ({rate * topology.chips_a_host / GB:g} GB/s a host of "
            f"{topology.chips_a_host} chips), and an exchange takes "
            f"{EXCHANGE_SECONDS * 1e6:g} microseconds each way"
        )
    return said
