"""Time and memory of forward plus backward attention, blocked against reference.

Milliseconds are the least of several interleaved runs, megabytes the scratch memory of the compiled
program. Ends with an error where `blocked` breaks what it promises for HYLA. Run it as
`python tests/benchmarks/bench_attention.py`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.attention.attend import attend
from hyla_lm.attention.spec import VARIANTS

BATCH, HEADS, HEAD_DIM = 1, 8, 64
NAMES = ("hyla", "softmax", "linear")
RUNS_OF_LENGTH = {128: 10, 512: 4, 2048: 1}

MIN_SPEEDUP = 2.0
MAX_MEMORY_SHARE = 1 / 8
# Four times the length is four times the memory; an eighth more is for buffers of fixed size.
MAX_MEMORY_GROWTH = 4.5


@dataclass
class Cost:
    seconds: float
    scratch_bytes: int


def operands(length: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shape = (BATCH, length, HEADS, HEAD_DIM)
    return tuple(jnp.asarray(np.float32(rng.normal(size=shape))) for _ in range(3))


def compiled_step(name: str, implementation: str, length: int) -> Callable:
    """The compiled gradient of a scalar of causal attention by q, k and v."""

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        y = attend(q, k, v, VARIANTS[name], causal=True, implementation=implementation)
        return jnp.sum(y**2)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(*operands(length)).compile()


def seconds_of(step: Callable, x: tuple[jax.Array, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(step(*x))
    return time.perf_counter() - start


def measure(name: str, length: int) -> dict[str, Cost]:
    """The cost of each implementation; runs alternate, so that a busy machine slows both."""
    x, runs = operands(length), RUNS_OF_LENGTH[length]
    steps = {each: compiled_step(name, each, length) for each in ("reference", "blocked")}
    warm_up = runs > 1
    if warm_up:
        for step in steps.values():
            seconds_of(step, x)
    seconds = [{each: seconds_of(step, x) for each, step in steps.items()} for _ in range(runs)]
    return {
        each: Cost(min(run[each] for run in seconds), step.memory_analysis().temp_size_in_bytes)
        for each, step in steps.items()
    }


def check_hyla(costs: dict[tuple[str, int], dict[str, Cost]]) -> None:
    reference, blocked = costs["hyla", 512]["reference"], costs["hyla", 512]["blocked"]
    longer = costs["hyla", 2048]["blocked"]
    assert reference.seconds >= MIN_SPEEDUP * blocked.seconds
    assert blocked.scratch_bytes <= MAX_MEMORY_SHARE * reference.scratch_bytes
    assert longer.scratch_bytes <= MAX_MEMORY_GROWTH * blocked.scratch_bytes


def main() -> None:
    print(f"float32, B={BATCH}, H={HEADS}, K=U={HEAD_DIM}, {jax.default_backend()}")
    costs = {(name, length): measure(name, length) for name in NAMES for length in RUNS_OF_LENGTH}
    for (name, length), cost in costs.items():
        reference, blocked = cost["reference"], cost["blocked"]
        print(
            f"{name:8} T={length:<5} reference {reference.seconds * 1e3:8.1f} ms "
            f"{reference.scratch_bytes / 1e6:8.1f} MB  blocked {blocked.seconds * 1e3:8.1f} ms "
            f"{blocked.scratch_bytes / 1e6:8.1f} MB"
        )
    check_hyla(costs)


if __name__ == "__main__":
    main()
