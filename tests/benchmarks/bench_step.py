"""A whole train step on this machine against a plain one: make bench-step.

Both train float32 on the same tokens. The steps alternate, so that a busy machine slows all alike,
and a ratio is the median over rounds. Memory is what the compiled step needs beside its arguments.
Ends with an error where a ratio is below its bar.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from hyla_lm.cli.huge_pages import start_with_huge_pages
from hyla_lm.model.config import ModelConfig
from hyla_lm.model.decoder import Decoder
from hyla_lm.optim import OptimizerConfig, make_optimizer, make_schedule
from hyla_lm.run.program import init_params
from hyla_lm.tasks.language_model import NextToken
from hyla_lm.tools import output
from hyla_lm.train_step import init_state, make_train_step
from tests.benchmarks.plain_decoder import make_plain_step

ATTENTIONS = ("softmax", "linear", "hyla")
LOGIT_CHUNK = 128


@dataclass(frozen=True)
class Shape:
    """What a step trains, and the least (faster, slower, times) of its ratios of speed."""

    name: str
    model: ModelConfig
    vocab_size: int
    length: int
    batch_size: int
    rounds: int
    bars: tuple[tuple[str, str, float], ...]


SMALL = ModelConfig(
    num_layers=4, model_dim=256, num_heads=4, head_dim=64, mlp_dim=1024, dtype="float32"
)
SHAPES = (
    Shape(
        "4 layers of 256, 16 rows of 256 tokens, vocabulary of 4,096",
        replace(SMALL, use_bias=False),
        vocab_size=4096,
        length=256,
        batch_size=16,
        rounds=15,
        bars=(("softmax", "plain", 1.3), ("linear", "plain", 1.4), ("hyla", "softmax", 0.75)),
    ),
    Shape(
        "6 layers of 512, 2 rows of 512 tokens, vocabulary of 32,000",
        replace(SMALL, use_bias=False, num_layers=6, model_dim=512, num_heads=8, mlp_dim=2048),
        vocab_size=32000,
        length=512,
        batch_size=2,
        rounds=9,
        bars=(("softmax", "plain", 1.25), ("linear", "plain", 1.25)),
    ),
)


@dataclass
class Trained:
    """A compiled step and its state; each call is one update."""

    step: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    scratch_bytes: int

    def seconds(self, batch: Any) -> float:
        started = time.perf_counter()
        self.state, output = self.step(self.state, batch)
        jax.block_until_ready((self.state, output))
        return time.perf_counter() - started


def plain(shape: Shape, tokens_BxT1: jax.Array) -> Trained:
    init, step = make_plain_step(shape.model, shape.vocab_size)
    state = init(shape.length)
    compiled = step.lower(state, tokens_BxT1).compile()
    scratch = compiled.memory_analysis().temp_size_in_bytes
    return Trained(compiled, state, scratch)


def ours(shape: Shape, attention: str, tokens_BxT1: jax.Array) -> Trained:
    chunk = min(LOGIT_CHUNK, shape.length)
    task = NextToken(shape.vocab_size, 1, shape.length, chunk, z_loss=0.0)
    model = Decoder(replace(shape.model, attention=attention), task.io)
    settings = OptimizerConfig()
    optimizer = make_optimizer(settings, make_schedule(settings, 10_000))
    state = jax.jit(partial(init_state, partial(init_params, model), optimizer, 0))()
    step = jax.jit(make_train_step(task.loss(model), optimizer, 1, 0), donate_argnums=0)
    compiled = step.lower(state, batch_of(tokens_BxT1)).compile()
    scratch = compiled.memory_analysis().temp_size_in_bytes
    return Trained(lambda state, tokens: compiled(state, batch_of(tokens)), state, scratch)


def batch_of(tokens_BxT1: jax.Array) -> dict[str, jax.Array]:
    """The tokens as the rows of a language model's batch."""
    rows = jnp.zeros(tokens_BxT1.shape[0], jnp.int32)
    return {"tokens": tokens_BxT1, "text_bytes": rows, "row": rows}


def measure(shape: Shape) -> tuple[dict[str, Trained], dict[str, list[float]]]:
    """The steps, and their seconds by round; the first round warms up and is dropped."""
    rng = np.random.default_rng(0)
    size = (shape.batch_size, shape.length + 1)
    tokens_BxT1 = jnp.asarray(rng.integers(2, shape.vocab_size, size), jnp.int32)
    steps = {"plain": plain(shape, tokens_BxT1)}
    steps |= {name: ours(shape, name, tokens_BxT1) for name in ATTENTIONS}
    rounds = [
        {name: step.seconds(tokens_BxT1) for name, step in steps.items()}
        for _ in range(shape.rounds + 1)
    ]
    return steps, {name: [each[name] for each in rounds[1:]] for name in steps}


def ratio(seconds: dict[str, list[float]], name: str, other: str) -> float:
    """How many times as fast as the other, the median over rounds."""
    pairs = zip(seconds[other], seconds[name], strict=True)
    return statistics.median(theirs / own for theirs, own in pairs)


def report(shape: Shape) -> list[str]:
    """Prints a shape's table; the bars that do not hold, in words."""
    steps, seconds = measure(shape)
    rows = [["step", "tokens/s", "of plain", "of softmax", "scratch MB"]]
    for name, step in steps.items():
        tokens_per_s = shape.batch_size * shape.length / statistics.median(seconds[name])
        ratios = [f"{ratio(seconds, name, other):.2f}" for other in ("plain", "softmax")]
        scratch = f"{step.scratch_bytes / 1e6:,.0f}"
        rows.append([name, f"{tokens_per_s:,.0f}", *ratios, scratch])
    print(shape.name, *output.plain(rows), sep="\n", flush=True)
    found = {(name, other): ratio(seconds, name, other) for name, other, _ in shape.bars}
    return [
        f"{name} is {found[name, other]:.2f} times as fast as {other}, not {least}"
        for name, other, least in shape.bars
        if found[name, other] < least
    ]


def main() -> int:
    start_with_huge_pages(trains=True)
    broken = [line for shape in SHAPES for line in report(shape)]
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
