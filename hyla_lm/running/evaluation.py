"""Metrics over fixed evaluation sets: sums and counts in float64, divided once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hyla_lm.ending import Preempted
from hyla_lm.metrics import HostMetrics, Metrics, add, means, to_host
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.tasks.protocol import Batch, Presentation

EvaluationStep = Callable[[Any, Batch], Metrics]


def evaluate_sets(
    task: Presentation,
    evaluation_step: EvaluationStep,
    params: Any,
    sets: Mapping[str, Iterable[Batch]],
    place: Callable[[Batch], Batch],
    guard: PreemptionGuard | None = None,
) -> dict[str, float]:
    """Metrics of each evaluation set, named by the set; raises Preempted when asked to stop."""
    values: dict[str, float] = {}
    for name, batches in sets.items():
        sums = evaluate(evaluation_step, params, batches, place, guard)
        prefix = f"{name}_" if name else ""
        values |= {
            f"{prefix}{key}": value for key, value in task.logged_metrics(means(sums)).items()
        }
    return values


def evaluate(
    evaluation_step: EvaluationStep,
    params: Any,
    batches: Iterable[Batch],
    place: Callable[[Batch], Batch],
    guard: PreemptionGuard | None = None,
) -> HostMetrics:
    """Summed metrics of all batches; the device works on one while the next is read.

    Raises Preempted when the run is asked to stop.
    """
    total: HostMetrics = {}
    pending: Metrics | None = None
    for batch in batches:
        if guard is not None and guard.requested():
            raise Preempted
        started = evaluation_step(params, place(batch))
        if pending is not None:
            total = add(total, to_host(pending))
        pending = started
    return total if pending is None else add(total, to_host(pending))
