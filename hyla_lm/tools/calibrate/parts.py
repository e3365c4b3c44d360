"""Parts of a train step, each timed alone on one device with the rows that one has.

A part is compiled by itself, so its times do not add up to the step: XLA fuses across parts there,
and each program here is launched and waited for. A layer is timed once and counted as often as it
is there; what `remat` computes again is left out.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from hyla_lm.model.decoder import TokenTable, make_feedforward
from hyla_lm.model.loss import cross_entropy
from hyla_lm.model.self_attention import Context, SelfAttention
from hyla_lm.model.width import rate_of
from hyla_lm.optim import make_optimizer
from hyla_lm.parallel.mesh import alone
from hyla_lm.run.program import init_params
from hyla_lm.tools.calibrate.subject import Subject
from hyla_lm.tools.calibrate.timing import Budget, Measurement, Timing, timed

GROUP = "part"


def time_parts(subject: Subject, budget: Budget, say: Callable[[str], None]) -> list[Measurement]:
    """Seconds of each part in a step, forward and backward unless its name says forward."""
    found = []
    with alone():
        for name, timing in _timings(subject, budget):
            say(f"part: {name}, {timing.median * 1e3:.2f} ms a step")
            found.append(Measurement(GROUP, name, timing))
    return found


def _timings(subject: Subject, budget: Budget) -> Iterator[tuple[str, Timing]]:
    c, each = subject.experiment.model, subject.micro_batches
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
