"""Updates whose numbers went wrong: the policy, and a train step that skips them.

A skipped update leaves parameters and optimizer as they were, in the compiled step. The step
counter goes on and the batch is gone; the learning-rate schedule counts the updates made.
`optax.apply_if_finite` is not used: it makes the bad update once its limit is reached, sees neither
the loss nor the parameters, and knows no spikes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.tasks.protocol import Batch
from hyla_lm.train_step import StepOutput, TrainState, TrainStep

ACTIONS = ("stop", "skip")


@configurable
@dataclass(frozen=True)
class UpdatePolicy:
    """What becomes of an update that is not finite or whose gradient spikes."""

    nonfinite: str = setting(
        "stop",
        "what an update does whose loss, gradients or new parameters are not finite",
        choices=ACTIONS,
    )
    spike_factor: float | None = setting(
        None,
        "a gradient norm above this times its running mean is a spike; None looks for none",
        minimum=1,
    )
    spike: str = setting("stop", "what an update does whose gradient norm spikes", choices=ACTIONS)
    spike_memory: int = setting(
        100,
        "updates that the running mean remembers; spikes are looked for once it has seen as many",
        minimum=1,
    )
    skip_limit: int = setting(
        100, "skipped updates, in all since step 0, above which the run stops", minimum=0
    )

    def check(self) -> None:
        if self.spike == "skip" and self.spike_factor is None:
            raise UserError(
                "UpdatePolicy.spike = 'skip' needs UpdatePolicy.spike_factor: set it, for example "
                "to 10."
            )

    @property
    def is_on(self) -> bool:
        """Whether the train step looks at its numbers and its state counts."""
        return self.nonfinite == "skip" or self.spike_factor is not None


class Guard(NamedTuple):
    """What the state keeps: updates skipped and made, and the running mean of gradient norms.

    The mean is that of all updates made, and of about the last `spike_memory` once there are more.
    """

    skipped: jax.Array
    made: jax.Array
    mean_norm: jax.Array


class GuardedState(NamedTuple):
    """The optimizer's state in a TrainState while a policy is on."""

    optimizer: optax.OptState
    guard: Guard


class Verdict(NamedTuple):
    """What was found of one update; `mean_norm` is from before it, `skipped` counts it."""

    is_finite: jax.Array
    is_spike: jax.Array
    is_skipped: jax.Array
    gradient_norm: jax.Array
    mean_norm: jax.Array
    skipped: jax.Array


def guard_init(init: Callable[[], TrainState]) -> Callable[[], TrainState]:
    """The same first state with a guard beside the optimizer's."""

    def guarded_init() -> TrainState:
        state = init()
        zero = jnp.zeros((), jnp.int32)
        guard = Guard(zero, zero, jnp.zeros(()))
        return state._replace(opt_state=GuardedState(state.opt_state, guard))

    return guarded_init


def guard_step(step: TrainStep, policy: UpdatePolicy) -> TrainStep:
    """The same step, which skips what the policy says and gives its verdict with the output.

    Metrics and norms of a skipped update are sums and counts of 0, so that means leave it out.
    """

    def guarded_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepOutput]:
        before, guard = state.opt_state
        new, output = step(state._replace(opt_state=before), batch)
        verdict = judge(policy, guard, output, new.params)

        def unless_skipped(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(verdict.is_skipped, old, new)

        params = jax.tree.map(unless_skipped, new.params, state.params)
        optimizer = jax.tree.map(unless_skipped, new.opt_state, before)
        metrics, norms = jax.tree.map(
            lambda x: unless_skipped(x, jnp.zeros_like(x)), (output.metrics, output.norms)
        )
        opt_state = GuardedState(optimizer, counted(guard, verdict, policy.spike_memory))
        return (
            TrainState(new.step, params, opt_state),
            output._replace(metrics=metrics, verdict=verdict, norms=norms),
        )

    return guarded_step


def judge(policy: UpdatePolicy, guard: Guard, output: StepOutput, params: Any) -> Verdict:
    """The verdict on an update from its loss, its gradient norm and the parameters it made."""
    norm, loss = output.metrics["gradient_norm"][0], output.objective[0]
    watched = (norm, loss, params)
    is_finite = jax.tree.reduce(
        jnp.logical_and, jax.tree.map(lambda x: jnp.all(jnp.isfinite(x)), watched)
    )
    is_spike = jnp.zeros((), bool)
    if policy.spike_factor is not None:
        knows_mean = guard.made >= policy.spike_memory
        is_spike = is_finite & knows_mean & (norm > policy.spike_factor * guard.mean_norm)
    is_skipped = ~is_finite & (policy.nonfinite == "skip") | is_spike & (policy.spike == "skip")
    skipped = guard.skipped + is_skipped
    return Verdict(is_finite, is_spike, is_skipped, norm, guard.mean_norm, skipped)


def counted(guard: Guard, verdict: Verdict, memory: int) -> Guard:
    """The guard after an update."""
    made = guard.made + ~verdict.is_skipped
    change = (verdict.gradient_norm - guard.mean_norm) / jnp.clip(made, 1, memory)
    mean_norm = guard.mean_norm + jnp.where(verdict.is_skipped, 0, change)
    return Guard(verdict.skipped, made, mean_norm)
