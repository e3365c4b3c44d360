"""When the numbers of an update stop a run, and what may have caused them."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.logs.console import TrainingProgress
from hyla_lm.run.program import Program
from hyla_lm.run.store import RunStore
from hyla_lm.run.summary import training_kernels
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import StepOutput

LARGEST_NAMED = 5
REMEMBERED = 20
ROWS_SHOWN = 32
GROWN = 10.0


class BadUpdate(UserError):
    """An update's numbers went wrong; the checkpoints are from before it."""


class NonFinite(BadUpdate):
    """Loss or gradients stopped being finite."""


class Seen(NamedTuple):
    """The mean loss of an update and its gradient norm."""

    loss: float
    gradient_norm: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class Alarm:
    """Looks at each update once it is known; raises BadUpdate where the run must stop."""

    def __init__(self, program: Program[Task], store: RunStore, progress: TrainingProgress):
        self._program, self._store, self._progress = program, store, progress
        self._policy = program.experiment.updates
        self._history: deque[Seen] = deque(maxlen=REMEMBERED)

    def look(self, step: int, output: StepOutput, rows: np.ndarray) -> None:
        """Raises BadUpdate for an update that stops the run; tells of one that was skipped."""
        objective, norm, verdict = jax.device_get(
            (output.objective, output.metrics["gradient_norm"][0], output.verdict)
        )
        total, count = map(float, objective)
        seen = Seen(
            total / count if count else total,
            float(norm if verdict is None else verdict.gradient_norm),
        )
        is_finite = seen.is_finite if verdict is None else bool(verdict.is_finite)
        if is_finite and (verdict is None or not verdict.is_spike):
            self._history.append(seen)
            return
        found = self._found(step, seen, output, rows)
        if verdict is not None and verdict.is_skipped:
            skipped = int(verdict.skipped)
            self._check_limit(step, skipped, found)
            self._progress.say(f"{found}. The update is skipped, number {skipped} of this run.")
        elif is_finite:
            raise BadUpdate(f"{found}. {self._advice_on_spike(verdict)} {self._kept()}")
        else:
            raise NonFinite(f"{found}. {self._cause(step, seen)} {self._kept()}")

    def _found(self, step: int, seen: Seen, output: StepOutput, rows: np.ndarray) -> str:
        norms = {name: float(norm) for name, norm in output.gradient_norms.items()}
        worst = sorted(norms, key=lambda name: (math.isfinite(norms[name]), -norms[name]))
        named = ", ".join(f"{name} {norms[name]:.3g}" for name in worst[:LARGEST_NAMED])
        return (
            f"step {step}: loss {seen.loss:.4g}, gradient norm {seen.gradient_norm:.4g} on rows "
            f"{_listed(sorted(rows.tolist()))}; largest gradients: {named}"
        )

    def _check_limit(self, step: int, skipped: int, found: str) -> None:
        limit = self._policy.skip_limit
        if skipped > limit:
            raise BadUpdate(
                f"{found}. {skipped} updates were skipped, above UpdatePolicy.skip_limit = {limit}:"
                f" raise it if such updates are to be expected. {self._kept()}"
            )

    def _advice_on_spike(self, verdict: Any) -> str:
        return (
            f"The gradient norm is above UpdatePolicy.spike_factor = {self._policy.spike_factor:g} "
            f"times its running mean {float(verdict.mean_norm):.4g}: see these rows, set "
            "UpdatePolicy.spike to 'skip', or raise the factor."
        )

    def _cause(self, step: int, seen: Seen) -> str:
        rate = float(self._program.schedule(max(step - 2, 0)))
        kernels = " + ".join(dict.fromkeys(training_kernels(self._program)))
        return likely_cause(step, seen, list(self._history), rate, kernels)

    def _kept(self) -> str:
        steps = self._store.checkpoints.steps()
        return f"The last checkpoint is of step {steps[-1]}." if steps else "Nothing was saved."


def _listed(rows: list[int]) -> str:
    more = len(rows) - ROWS_SHOWN
    return f"{rows[:ROWS_SHOWN]} and {more} more" if more > 0 else f"{rows}"


def likely_cause(
    step: int, seen: Seen, history: Sequence[Seen], learning_rate: float, kernels: str
) -> str:
    """What may have made an update non-finite, and what to change; a sentence.

    `history` has the finite updates just before, the newest last, of this process alone;
    `learning_rate` is that of the update before.
    """
    if seen.is_finite:
        return "It made parameters that are not finite: lower OptimizerConfig.learning_rate."
    kernel = f"the attention kernel ({kernels}; try attention_implementation = 'reference')"
    if step == 1:
        part = "backward pass" if math.isfinite(seen.loss) else "loss"
        return (
            f"It is the first update, and its {part} is not finite: see the data, the "
            f"initialisation and {kernel}."
        )
    if learning_rate >= 1:
        return (
            f"The update before had the learning rate {learning_rate:.3g}, which moves parameters "
            "by about as much: lower OptimizerConfig.learning_rate."
        )
    if not history:
        return (
            f"It is the first update since the run went on from step {step - 1}, whose parameters "
            "may be spoiled: go on from an older checkpoint, or see these rows."
        )
    return _after_growth(history) or (
        f"The last update made was ordinary (loss {history[-1].loss:.4g}, gradient norm "
        f"{history[-1].gradient_norm:.4g}): see these rows, or try the same step on other hardware."
    )


def _after_growth(history: Sequence[Seen]) -> str:
    """The advice where the gradient norm has grown by a large factor; empty where it has not."""
    norms = [seen.gradient_norm for seen in history]
    first = int(np.argmin(norms))
    if norms[first] == 0 or norms[-1] < GROWN * norms[first]:
        return ""
    return (
        f"The gradient norm rose from {norms[first]:.3g} to {norms[-1]:.3g} over the last "
        f"{len(norms) - 1 - first} steps: lower OptimizerConfig.learning_rate or set a lower "
        "OptimizerConfig.clip_norm."
    )
