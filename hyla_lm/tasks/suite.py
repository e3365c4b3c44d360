"""Suites: small models with a language model's attention, trained beside it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
from etils import epath

from hyla_lm.ending import Preempted
from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig
from hyla_lm.parallel.preemption import PreemptionGuard

SUITES = "suites"


@runtime_checkable
class Suite(Protocol):
    """A gin-bindable suite of small models, trained in its own folder."""

    @property
    def name(self) -> str:
        """The name of its folder in `suites`, and of its TensorBoard tags."""
        ...

    @property
    def every(self) -> int | None:
        """Steps of the run after which the suite catches up with it; None trains it at the end."""
        ...

    def check_model(self, model: ModelConfig) -> None:
        """Raises UserError if the suite cannot train with this model's attention."""
        ...

    def run(self, model: ModelConfig, folder: str, share: float) -> dict[str, float]:
        """Trains to this share of the suite's steps, from the newest checkpoint in the folder.

        Returns metrics.

        Raises Preempted when it is asked to stop, after saving.
        """
        ...


def check_suites(suites: Sequence[Suite], model: ModelConfig) -> None:
    """Raises UserError for suites that cannot run; call it before training."""
    if not suites:
        return
    names = [suite.name for suite in suites]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"TrainConfig.suites has {name!r} twice: take one out or change its name."
            )
    if jax.process_count() > 1:
        raise UserError(
            f"TrainConfig.suites run in one process, and this run has {jax.process_count()}: leave "
            "them out, and give the same command with them on one host when training is over."
        )
    for suite in suites:
        suite.check_model(model)


def run_suites(
    suites: Sequence[Suite],
    model: ModelConfig,
    workdir: epath.Path,
    share: float,
    guard: PreemptionGuard,
) -> dict[str, dict[str, float]]:
    """Trains each suite in its folder; metrics by suite. Raises Preempted when asked to stop."""
    found = {}
    for suite in suites:
        if guard.requested():
            raise Preempted(f"stopped before suite {suite.name}")
        print(f"suite {suite.name}: training to {share:.0%} of its steps", flush=True)
        try:
            found[suite.name] = suite.run(model, str(workdir / SUITES / suite.name), share)
        except Preempted as stop:
            raise Preempted(f"suite {suite.name} {stop}") from None
    return found


def tags(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """The suites' metrics by their tag in TensorBoard and metrics.jsonl."""
    return {
        f"{SUITES}/{suite}/{name}": value
        for suite, metrics in found.items()
        for name, value in metrics.items()
    }
