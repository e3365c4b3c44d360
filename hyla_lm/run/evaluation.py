"""Metrics over fixed evaluation sets: sums and counts in float64, divided once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hyla_lm.ending import Preempted
from hyla_lm.metrics import HostMetrics, Metrics, add, means, to_host
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.tasks.protocol import Batch, Task

EvaluationStep = Callable[[Any, Batch], Metrics]
Told = Callable[[str], None]


def nobody(waits_for: str) -> None:
    """Is told what an evaluation waits for, and does nothing."""


def evaluate_sets(
    task: Task,
    evaluation_step: EvaluationStep,
    params: Any,
    sets: Mapping[str, Iterable[Batch]],
    place: Callable[[Batch], Batch],
    told: Told = nobody,
    guard: PreemptionGuard | None = None,
) -> dict[str, float]:
    """Metrics of each evaluation set, named by the set; raises Preempted when asked to stop.

    `told` is called with what is waited for next.
    """
    values: dict[str, float] = {}
    for name, batches in sets.items():
        sums = evaluate(evaluation_step, params, batches, place, told, guard)
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
    told: Told = nobody,
    guard: PreemptionGuard | None = None,
) -> HostMetrics:
    """Summed metrics of all batches; the device works on one while the next is read.

    Raises Preempted when the run is asked to stop.
    """
    total: HostMetrics = {}
    pending: Metrics | None = None
    for batch in _telling(batches, told):
        if guard is not None and guard.requested():
            raise Preempted
        started = evaluation_step(params, place(batch))
        if pending is not None:
            total = add(total, to_host(pending))
        pending = started
    return total if pending is None else add(total, to_host(pending))


def _telling(batches: Iterable[Batch], told: Told) -> Iterator[Batch]:
    data, device = "rows to evaluate on", "the device, which evaluates"
    told(data)
    for batch in batches:
        told(device)
        yield batch
        told(data)
    told(device)
