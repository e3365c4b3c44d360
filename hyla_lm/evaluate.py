"""Metrics over a fixed evaluation set: sums and counts in float64, divided once."""

from collections.abc import Callable, Iterable
from typing import Any

from hyla_lm.metrics import HostMetrics, Metrics, add, to_host
from hyla_lm.preemption import Notice, Preempted
from hyla_lm.task import Batch

EvaluationStep = Callable[[Any, Batch], Metrics]


def evaluate(
    evaluation_step: EvaluationStep,
    params: Any,
    batches: Iterable[Batch],
    place: Callable[[Batch], Batch],
    notice: Notice | None = None,
) -> HostMetrics:
    """Summed metrics of all batches; the device works on one while the next is read.

    Raises Preempted when a notice comes meanwhile.
    """
    total: HostMetrics = {}
    pending: Metrics | None = None
    for batch in batches:
        if notice is not None and notice.came():
            raise Preempted
        started = evaluation_step(params, place(batch))
        if pending is not None:
            total = add(total, to_host(pending))
        pending = started
    return total if pending is None else add(total, to_host(pending))
