"""From cycles, collectives and memory to a range of step times, and what follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass

from hyla_lm.attention.chips import Chip
from hyla_lm.tools.cycles.cycles import PartCycles
from hyla_lm.tools.plan.collectives import Collective
from hyla_lm.tools.plan.compile import Memory
from hyla_lm.tools.plan.links import links_of
from hyla_lm.tools.plan.topology import Slice

METHOD = (
    "compute is the sum of XLA's estimated cycles of its own operations and of the counted bundles "
    "of Pallas kernels (estimated), or the counted bundles of everything, each operation at least "
    "as long as moving its arrays from and to HBM (counted), over the clock. Collectives send "
    "their bytes around rings, at the bandwidth of all links where they close (16x16, and cubes of "
    "v5p), at half of it elsewhere; between slices through the network cards of the hosts. The "
    "shortest step is the lower compute with all collectives hidden behind it, the longest the "
    "higher compute with none hidden and the latency of each. The bound is the larger of FLOPs "
    "over the peak and of reading and writing the state at HBM bandwidth."
)
ERROR = (
    "no figure has been compared with a chip. XLA's estimate of one operation can be off "
    "severalfold either way; host and input are left out."
)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step; `bound` is a lower bound for any program.

    `collectives` is the time of their bytes, `latency` what small ones wait beside it.
    """

    estimated_compute: float
    counted_compute: float
    collectives: float
    latency: float
    bound: float

    @property
    def shortest(self) -> float:
        compute = min(self.estimated_compute, self.counted_compute)
        return max(compute, self.collectives, self.bound)

    @property
    def longest(self) -> float:
        compute = max(self.estimated_compute, self.counted_compute)
        return max(compute + self.collectives + self.latency, self.bound)


def step_time(
    parts: Sequence[PartCycles],
    collectives: Sequence[Collective],
    memory: Memory,
    flops_a_chip: float,
    topology: Slice,
) -> StepTime:
    """The time of a step by both methods, with the time of the links and the lower bound."""
    chip, links = topology.chip, links_of(topology)
    state_bytes = 2 * (memory.parameters + memory.optimizer) + memory.batch
    return StepTime(
        sum(part.estimated for part in parts) / chip.clock_hz,
        sum(part.counted for part in parts) / chip.clock_hz,
        sum(map(links.seconds, collectives)),
        sum(map(links.latency, collectives)),
        max(flops_a_chip / chip.peak_flops, state_bytes / chip.hbm_bytes_per_second),
    )


def consequences(
    seconds: float,
    tokens_a_step: int,
    flops_per_token: float,
    steps: int,
    chips: int,
    chip: Chip,
    price_per_chip_hour: float | None,
) -> dict[str, float]:
    """Speed, share of the peak, and time and cost of the run at this time of a step."""
    tokens_per_second = tokens_a_step / seconds
    chip_hours = seconds * steps * chips / 3600
    cost = {} if price_per_chip_hour is None else {"cost": chip_hours * price_per_chip_hour}
    return {
        "step_seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_a_chip": tokens_per_second / chips,
        "mfu": tokens_per_second * flops_per_token / (chips * chip.peak_flops),
        "run_hours": seconds * steps / 3600,
        "chip_hours": chip_hours,
        **cost,
    }
