"""Updates whose numbers went wrong: the policy, a step that skips them, the check that stops a run.

A skipped update leaves parameters and optimizer as they were, in the compiled step. The step
counter advances and the batch is gone; the learning-rate schedule counts the updates made.
`optax.apply_if_finite` is not used: it makes the bad update once its limit is reached, sees neither
the loss nor the parameters, and knows no spikes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.tasks.protocol import Batch
from hyla_lm.train_step import StepOutput, TrainState, TrainStep

LARGEST_NAMED = 5  # gradients, in messages


@configurable
@dataclass(frozen=True)
class UpdatePolicy:
    """What becomes of an update that is not finite or whose gradient spikes."""

    nonfinite: str = setting(
        "stop",
        "what an update does whose loss, gradients or new parameters are not finite",
        choices=("stop", "skip"),
    )
    spike_factor: float | None = setting(
        None,
        "skip updates whose gradient norm is above this times its running mean; None skips none",
        minimum=1,
    )
    spike_memory: int = setting(
        100,
        "updates that the running mean remembers; spikes are found once it has as many",
        minimum=1,
    )
    skip_limit: int = setting(
        100, "skipped updates, in all since step 0, above which the run stops", minimum=0
    )

    @property
    def is_on(self) -> bool:
        """Whether the train step judges its numbers and its state counts."""
        return self.nonfinite == "skip" or self.spike_factor is not None


class Guard(NamedTuple):
    """What the state holds: updates skipped and made, and the running mean of gradient norms.

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
    """What the step says of one update; `skipped` counts it."""

    is_finite: jax.Array
    is_skipped: jax.Array
    gradient_norm: jax.Array
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
    is_skipped = ~is_finite & (policy.nonfinite == "skip")
    if policy.spike_factor is not None:
        knows_mean = guard.made >= policy.spike_memory
        is_skipped |= is_finite & knows_mean & (norm > policy.spike_factor * guard.mean_norm)
    return Verdict(is_finite, is_skipped, norm, guard.skipped + is_skipped)


def counted(guard: Guard, verdict: Verdict, memory: int) -> Guard:
    """The guard after an update."""
    made = guard.made + ~verdict.is_skipped
    change = (verdict.gradient_norm - guard.mean_norm) / jnp.clip(made, 1, memory)
    mean_norm = guard.mean_norm + jnp.where(verdict.is_skipped, 0, change)
    return Guard(verdict.skipped, made, mean_norm)


class BadUpdate(UserError):
    """An update's numbers went wrong; the checkpoints are from before it."""


def check_update(policy: UpdatePolicy, step: int, output: StepOutput, rows: np.ndarray) -> str:
    """A sentence on an update that was skipped, and nothing of any other; waits for the device.

    Raises BadUpdate for an update that stops the run.
    """
    objective, norm, verdict = jax.device_get(
        (output.objective, output.metrics["gradient_norm"][0], output.verdict)
    )
    total, count = map(float, objective)
    loss = total / count if count else total
    is_finite, is_skipped = math.isfinite(loss) and math.isfinite(norm), False
    if verdict is not None:
        norm, is_finite, is_skipped = verdict.gradient_norm, verdict.is_finite, verdict.is_skipped
    if is_finite and not is_skipped:
        return ""
    gradient_norms = {name: float(of) for name, of in output.gradient_norms.items()}
    worst = sorted(gradient_norms.items(), key=lambda item: (math.isfinite(item[1]), -item[1]))
    largest = ", ".join(f"{name} {of:.3g}" for name, of in worst[:LARGEST_NAMED])
    what = (
        f"step {step}: loss {loss:.4g}, gradient norm {norm:.4g} on rows {sorted(rows.tolist())}; "
        f"largest gradients: {largest}."
    )
    if not is_skipped:
        raise BadUpdate(
            f"{what} Lower OptimizerConfig.learning_rate or OptimizerConfig.clip_norm, see these "
            "rows, or set UpdatePolicy.nonfinite to 'skip' from the start of a run."
        )
    if verdict.skipped > policy.skip_limit:
        raise BadUpdate(
            f"{what} {verdict.skipped} updates were skipped, above UpdatePolicy.skip_limit = "
            f"{policy.skip_limit}: raise it if such updates are to be expected."
        )
    return f"{what} The update is skipped, number {verdict.skipped} of this run."
