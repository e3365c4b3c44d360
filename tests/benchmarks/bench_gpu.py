"""Training of the paper's models on the device that is here: tokens/s, MFU, errors of kernels.

make bench-gpu [GINS="a.gin b.gin"]. A config is also timed with the kernel that runs anywhere,
where that is another. An error is the largest difference from the reference in float32 over its
largest entry, in the output and every gradient. Status 1 where one is above its bound: three times
what the reference itself loses in the config's dtype, and at least a rounding of the result.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.attention.attend import choose
from hyla_lm.attention.reference import attend_block
from hyla_lm.attention.request import make_request
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.model.config import ModelConfig
from hyla_lm.model.flops import model_flops_utilization, train_flops_per_token
from hyla_lm.parallel.mesh import all_devices
from hyla_lm.run.program import Program, checked_mesh, compile_step, lay_out
from hyla_lm.run.summary import training_kernels

GINS = tuple(f"gin/c4_50m_{name}.gin" for name in ("softmax", "linear", "hyla"))
ANYWHERE = "ModelConfig.attention_implementation = 'blocked'"
STEPS = 20
FLOORS = {"float32": 2e-4, "bfloat16": 1e-2}
ALLOWANCE = 3.0
ROWS, ODD_LENGTH = 2, 301


def read_program(gin: str, *bindings: str) -> Program[Any]:
    """The program of a config on all devices, without its data."""
    experiment = read_experiment([gin], list(bindings))
    mesh = checked_mesh(experiment, all_devices())
    return lay_out(experiment, experiment.train.task.planned_objective(), mesh)


def tokens_per_second(program: Program[Any]) -> float:
    """Of the median step, from random tokens on the devices to the new state."""
    size, task = program.experiment.train.batch_size, program.task
    shape = task.batch_shapes(size)["tokens"].shape
    tokens = np.random.default_rng(0).integers(1, task.vocab_size, shape, np.int32)
    rows = np.arange(size, dtype=np.int32)
    seconds = []
    with jax.set_mesh(program.mesh):
        program = compile_step(program)
        batch = program.to_devices(
            {"tokens": tokens, "text_bytes": np.ones_like(rows), "row": rows}
        )
        state = program.init()
        for _ in range(STEPS):
            started = time.perf_counter()
            state, _ = jax.block_until_ready(program.train_step(state, batch))
            seconds.append(time.perf_counter() - started)
    return program.tokens_per_step / statistics.median(seconds[1:])


def speed(program: Program[Any]) -> tuple[float, str]:
    """Tokens per second of a config, and what is printed of it."""
    rate, task = tokens_per_second(program), program.task
    flops = train_flops_per_token(program.experiment.model, task.io, task.sequence_length)
    share = model_flops_utilization(rate, flops)
    mfu = "unknown" if share is None else f"{share:.1%}"
    return rate, f"{', '.join(training_kernels(program))}: {rate:,.0f} tokens/s, MFU {mfu}"


def worst_error(config: ModelConfig, length: int) -> float:
    """The largest share of its bound that an error of the config's kernels takes."""
    shapes = [
        (n, config.num_heads, config.head_dim, config.value_size) for n in (length, length + 44)
    ]
    return max(
        error_share(config, layer, *shape)
        for layer in range(len(config.pattern))
        for shape in (*shapes, (ODD_LENGTH, 3, 20, 33))
    )


def error_share(config: ModelConfig, layer: int, t: int, h: int, k: int, u: int) -> float:
    """`worst_error` of a layer on rows of several documents, by its shape."""
    spec, dtype = config.spec(layer), jnp.dtype(config.dtype)
    draw = np.random.default_rng(0)
    shapes = {"q": (ROWS, t, h, k), "k": (ROWS, t, h, k), "v": (ROWS, t, h, u)}
    if spec.value_depth == 2:
        shapes["deep_kernel_HxUxU"] = (h, u, u)
    given = {name: jnp.asarray(draw.normal(size=shape), dtype) for name, shape in shapes.items()}
    segments_BxT = jnp.asarray(np.cumsum(draw.random((ROWS, t)) < 0.05, axis=1), jnp.int32)
    cotangent = jnp.asarray(draw.normal(size=shapes["v"]), dtype)

    def request(given: Any) -> Any:
        more = dict(given)
        q, k, v = (more.pop(name) for name in "qkv")
        return make_request(q, k, v, spec, causal=True, segment_ids=segments_BxT, **more)

    def results(run: Any, given: Any) -> list[jax.Array]:
        y, pull_back = jax.vjp(lambda given: run(request(given)), given)
        return [
            x.astype(jnp.float32)
            for x in jax.tree.leaves((y, pull_back(cotangent.astype(y.dtype))))
        ]

    def errors(computed: list[jax.Array]) -> list[float]:
        pairs = zip(computed, expected, strict=True)
        return [float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in pairs]

    kernel = choose(jax.eval_shape(request, given))
    reference = jax.jit(partial(results, attend_block))
    with jax.default_matmul_precision("highest"):
        expected = reference(jax.tree.map(lambda x: x.astype(jnp.float32), given))
    own = errors(reference(given))
    found = errors(jax.jit(partial(results, kernel.run))(given))
    shares = [
        error / max(FLOORS[dtype.name], ALLOWANCE * bound)
        for error, bound in zip(found, own, strict=True)
    ]
    return max(shares) if np.isfinite(shares).all() else float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gins", nargs="*", default=GINS)
    parser.add_argument(
        "--bindings", nargs="*", default=(), help="such as TrainConfig.batch_size=8"
    )
    options = parser.parse_args()
    device, worst = jax.devices()[0], 0.0
    print(f"{jax.device_count()} x {device.device_kind} ({device.platform})", flush=True)
    for gin in options.gins:
        program = read_program(gin, *options.bindings)
        error = worst_error(program.experiment.model, program.task.sequence_length)
        worst = max(worst, error)
        rate, line = speed(program)
        print(f"{gin}: {line}; largest error {error:.0%} of its bound", flush=True)
        anywhere = read_program(gin, *options.bindings, ANYWHERE)
        if training_kernels(anywhere) != training_kernels(program):
            other, line = speed(anywhere)
            print(f"{gin}: {line}; auto is {rate / other:.2f} times as fast", flush=True)
    return int(worst > 1)


if __name__ == "__main__":
    sys.exit(main())
