"""The train step of a config, whole on all devices and in parts on one of them.

A part is compiled by itself, so its times do not add up to the step: XLA fuses across parts there,
and each program here is launched and waited for. A layer is timed once and counted as often as it
is there; what `remat` computes again is left out.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.model.decoder import Context, SelfAttention, TokenTable, make_feedforward
from hyla_lm.model.loss import cross_entropy
from hyla_lm.model.width import rate_of
from hyla_lm.optim import make_optimizer
from hyla_lm.parallel.mesh import all_devices, single_device
from hyla_lm.parallel.sharding import batch_ways
from hyla_lm.run.program import Program, checked_mesh, compile_step, init_params, lay_out
from hyla_lm.run.summary import training_kernels
from hyla_lm.tasks.language_model import NextToken
from hyla_lm.tools.calibrate.timing import Budget, Measurement, Timing, timed
from hyla_lm.tools.plan.compile import planned_objective

ON_ACCELERATOR = "gin/c4_50m_hyla.gin"
ON_CPU = "gin/calibrate_cpu.gin"


@dataclass(frozen=True)
class Subject:
    """An experiment laid out on all devices, each of which holds all parameters."""

    gin_files: tuple[str, ...]
    is_default: bool
    experiment: Experiment
    program: Program[NextToken]
    devices: Sequence[jax.Device]

    @property
    def platform(self) -> str:
        return self.devices[0].platform

    @property
    def rows(self) -> int:
        """Rows of one micro-batch on one device."""
        train = self.experiment.train
        return train.batch_size // (batch_ways(self.program.mesh) * train.accumulate_steps)

    @property
    def attention(self) -> list[str]:
        """The variants of the model, each with the kernel that trains it."""
        pattern = self.experiment.model.pattern
        kernels = enumerate(training_kernels(self.program))
        return sorted({f"{pattern[n % len(pattern)]} by {kernel}" for n, kernel in kernels})

    def batch(self) -> dict[str, np.ndarray]:
        """A global batch of random tokens, which are no BOS."""
        size, task = self.experiment.train.batch_size, self.program.task
        shape = task.batch_shapes(size)["tokens"].shape
        drawn = np.random.default_rng(0).integers(1, task.vocab_size, shape, np.int32)
        tokens = np.where(drawn == task.bos, 0, drawn).astype(np.int32)
        rows = np.arange(size, dtype=np.int32)
        return {"tokens": tokens, "text_bytes": np.ones_like(rows), "row": rows}


def read_subject(gin_files: Sequence[str], bindings: list[str]) -> Subject:
    """The config on the devices here, by default one for their platform; raises UserError.

    The default is the paper's 50M model with HYLA on a GPU or TPU, a small one on a CPU.
    """
    devices = all_devices()
    if jax.process_count() > 1:
        raise UserError(
            f"calibrate measures one host, and here are {jax.process_count()}: run it on a slice "
            "of one host."
        )
    files = tuple(gin_files) or (ON_CPU if devices[0].platform == "cpu" else ON_ACCELERATOR,)
    experiment = read_experiment(files, bindings)
    objective: Any = planned_objective(experiment)
    if not isinstance(objective, NextToken):
        raise UserError(
            f"TrainConfig.task = @{type(experiment.train.task).__name__}() cannot be calibrated: "
            "give the config of a language model, @LanguageModel()."
        )
    mesh = checked_mesh(experiment, devices)
    for axis in ("fsdp", "model"):
        if mesh.shape[axis] > 1:
            raise UserError(
                f"MeshConfig.{axis} = {mesh.shape[axis]} divides parameters, and calibrate times "
                f"parts that a device holds whole: set it to 1."
            )
    program = lay_out(experiment, objective, mesh)
    return Subject(files, not gin_files, experiment, program, devices)


def time_step(subject: Subject, budget: Budget) -> Measurement:
    """Seconds of a step that is compiled, from random tokens on the devices to its new state."""
    with jax.set_mesh(subject.program.mesh):
        program = compile_step(subject.program)  # type: ignore[arg-type]
        batch, state = program.to_devices(subject.batch()), program.init()

        def step() -> Any:
            nonlocal state
            state, output = program.train_step(state, batch)
            return state, output

        timing = timed(step, budget)
    return Measurement("step", "train step", timing, float(program.tokens_per_step), "tok")


def time_parts(subject: Subject, budget: Budget, say: Callable[[str], None]) -> list[Measurement]:
    """Seconds of each part in a step, forward and backward unless its name says forward."""
    parts = []
    with single_device():
        for name, timing in _timings(subject, budget):
            say(f"part: {name}, {timing.seconds * 1e3:.2f} ms per step")
            parts.append(Measurement("part", name, timing))
    return parts


def _timings(subject: Subject, budget: Budget) -> Iterator[tuple[str, Timing]]:
    c, each = subject.experiment.model, subject.experiment.train.accumulate_steps
    length, vocab_size = subject.program.task.sequence_length, subject.program.task.io.vocab_size
    dtype, key = jnp.dtype(c.dtype), jax.random.key(0)
    tokens = jax.random.randint(key, (subject.rows, length), 0, vocab_size)
    x = jax.random.normal(key, (subject.rows, length, c.model_dim), dtype)

    table = _Module(TokenTable(vocab_size, c.model_dim), dtype, tokens)
    yield "embedding", timed(table.both, budget).times(each)

    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    context = Context(positions, jnp.zeros_like(tokens), None, None, False)
    for name, count in Counter(c.pattern).items():
        spec = c.spec(c.pattern.index(name))
        attention = _Module(SelfAttention(c, spec, False, 0), dtype, x, context)
        runs = each * count * (c.num_layers // len(c.pattern))
        yield f"attention {name}, forward", timed(attention.forward, budget).times(runs)
        yield f"attention {name}", timed(attention.both, budget).times(runs)

    feedforward = _Module(make_feedforward(c), dtype, x)
    yield "feed-forward", timed(feedforward.both, budget).times(each * c.num_layers)

    params = jax.jit(init_params, static_argnums=0)(subject.program.model, key)
    yield "logits and loss", timed(_loss(subject, params, x, tokens), budget).times(each)
    yield "optimizer", timed(_update(subject, params), budget)


class _Module:
    """A module with parameters: its output, and that with the gradients of what it is given."""

    def __init__(self, module: nn.Module, dtype: jnp.dtype, x: jax.Array, *others: Any) -> None:
        def forward(params: Any, x: jax.Array) -> Any:
            return module.apply(params, x, *others).astype(dtype)  # type: ignore[union-attr]

        def both(params: Any, x: jax.Array, dy: jax.Array) -> Any:
            if jnp.issubdtype(x.dtype, jnp.integer):
                y, pull_back = jax.vjp(lambda params: forward(params, x), params)
            else:
                y, pull_back = jax.vjp(forward, params, x)
            return y, pull_back(dy)

        params = jax.jit(module.init)(jax.random.key(1), x, *others)
        one, two = jax.jit(forward), jax.jit(both)
        dy = jax.random.normal(jax.random.key(2), jax.eval_shape(forward, params, x).shape, dtype)
        self.forward = lambda: one(params, x)
        self.both = lambda: two(params, x, dy)


def _loss(subject: Subject, params: Any, hidden: jax.Array, target: jax.Array) -> Callable[[], Any]:
    """The loss of hidden states, with the gradients of the states and of the head."""
    task, model = subject.program.task, subject.program.model
    weight = jnp.ones(target.shape, jnp.float32)

    @jax.jit
    def loss(params: Any, hidden: jax.Array) -> Any:
        def objective(params: Any, hidden: jax.Array) -> jax.Array:
            head: Any = model.apply({"params": params}, method="output_head")
            chunk = task.logit_chunk
            return cross_entropy(head, hidden, target, weight, chunk, task.z_loss).objective

        return jax.value_and_grad(objective, argnums=(0, 1))(params, hidden)

    head = {name: leaf for name, leaf in params.items() if name in ("embed", "head")}
    return lambda: loss(head, hidden)


def _update(subject: Subject, params: Any) -> Callable[[], Any]:
    """One update of all parameters, in place as in training; the gradients are the parameters."""
    e = subject.experiment
    optimizer = make_optimizer(e.optimizer, subject.program.schedule, rate_of=rate_of(e.model))

    @partial(jax.jit, donate_argnums=(1, 2))
    def update(grads: Any, opt_state: Any, params: Any) -> tuple[Any, Any]:
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return opt_state, optax.apply_updates(params, updates)

    grads = jax.tree.map(jnp.copy, params)
    state = jax.jit(optimizer.init)(params), params

    def run() -> Any:
        nonlocal state
        state = update(grads, *state)
        return state

    return run
