"""One update: gradients of summed losses over micro-batches, divided once, then the optimizer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hyla_lm.metrics import Metrics, Pair
from hyla_lm.parallel.batch_sums import summed_over_batch
from hyla_lm.parallel.sharding import path_of
from hyla_lm.tasks.protocol import Batch, LossFn


class TrainState(NamedTuple):
    """Everything an update changes; random keys derive from `step`."""

    step: jax.Array
    params: Any
    opt_state: optax.OptState


class StepOutput(NamedTuple):
    """The step's summed objective and metrics, and the gradient norm of each parameter by path.

    `verdict` is that of hyla_lm.update_policy, where a policy is on. `norms` are those of
    hyla_lm.diagnostics.norms, where they are measured.
    """

    objective: Pair
    metrics: Metrics
    gradient_norms: dict[str, jax.Array]
    verdict: Any = None
    norms: Any = None


Sums = tuple[Pair, Metrics]
TrainStep = Callable[[TrainState, Batch], tuple[TrainState, StepOutput]]
Measure = Callable[[Any, Any, Any], Any]


def make_train_step(
    loss: LossFn,
    optimizer: optax.GradientTransformation,
    accumulate_steps: int,
    seed: Any,
    measure: Measure | None = None,
    gather_dtype: str = "float32",
) -> TrainStep:
    """The pure step to jit; a batch's leading axis is a multiple of accumulate_steps.

    The seed may be traced. `measure` makes the output's norms of gradients before clipping, updates
    and new parameters. Parameters that `fsdp` splits are gathered in `gather_dtype`.
    """

    def sum_micro_batches(params: Any, batch: Batch, key: jax.Array) -> tuple[Any, Sums]:
        if accumulate_steps == 1:
            return summed_gradients(loss, params, batch, jax.random.fold_in(key, 0))

        def add_micro_batch(total, micro):
            index, micro_batch = micro
            micro_key = jax.random.fold_in(key, index)
            sums = summed_gradients(loss, params, micro_batch, micro_key)
            return jax.tree.map(jnp.add, total, sums), None

        micro_batches = (jnp.arange(accumulate_steps), split_batch(batch, accumulate_steps))
        first = jax.tree.map(lambda x: x[0], micro_batches)
        shapes = jax.eval_shape(lambda m: summed_gradients(loss, params, m[1], key), first)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(add_micro_batch, zeros, micro_batches)[0]

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepOutput]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        whole_batch = summed_over_batch(sum_micro_batches, gather_dtype)
        grads, (objective, metrics) = whole_batch(state.params, batch, key)
        count = jnp.maximum(objective[1], 1)
        grads = jax.tree.map(lambda grad: grad / count, grads)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        squares = squared_norms(grads)
        metrics["gradient_norm"] = (jnp.sqrt(sum(squares.values())), jnp.ones(()))
        measured = None if measure is None else measure(grads, updates, params)
        gradient_norms = {path: jnp.sqrt(square) for path, square in squares.items()}
        output = StepOutput(objective, metrics, gradient_norms, norms=measured)
        return TrainState(state.step + 1, params, opt_state), output

    return train_step


def summed_gradients(
    loss: LossFn, params: Any, batch: Batch, key: jax.Array | None
) -> tuple[Any, Sums]:
    """Float32 gradients of the summed objective, and the sums of objective and metrics."""

    def objective_sum(params: Any) -> tuple[jax.Array, Sums]:
        objective, metrics = loss(params, batch, key)
        return objective[0], (objective, metrics)

    (_, sums), grads = jax.value_and_grad(objective_sum, has_aux=True)(params)
    return jax.tree.map(lambda grad: grad.astype(jnp.float32), grads), sums


def split_batch(batch: Batch, parts: int) -> Batch:
    """Splits axis B to parts x B/parts; each part has equally many rows of each device."""

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)

    return {name: split(value) for name, value in batch.items()}


def squared_norms(tree: Any) -> dict[str, jax.Array]:
    """The sum of the squares of each leaf by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_of(path): jnp.sum(jnp.square(leaf)) for path, leaf in leaves}


def init_state(
    init_params: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation, seed: Any
) -> TrainState:
    """The state before the first update, a pure function of the seed."""
    params = init_params(jax.random.key(seed))
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
