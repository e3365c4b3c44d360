"""What a run says of itself: rows at its start, summary.json."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from hyla_lm.diagnostics.norms import KINDS
from hyla_lm.model.flops import (
    count_parameters,
    model_flops_utilization,
    train_flops_per_token,
)
from hyla_lm.model.inspection import kernels_of
from hyla_lm.package import git_revision
from hyla_lm.parallel.mesh import AXES
from hyla_lm.parallel.sharding import bytes_on_device
from hyla_lm.run.program import Program
from hyla_lm.tasks.protocol import Objective, Task

TRAIN, OPTIM = "train", "optim"
LEARNING_RATE = f"{OPTIM}/learning_rate"
STEP_SECONDS = "perf/step_seconds"


def startup_lines(program: Program[Task], params: Any, first_step: int) -> dict[str, str]:
    """What a person wants to know before the first step; config.gin has the settings."""
    held = bytes_on_device(program.abstract_state.params) / 1e6
    kernels = ", ".join(dict.fromkeys(training_kernels(program)))
    axes = ", ".join(f"{axis} {program.mesh.shape[axis]}" for axis in AXES)
    start = f"from the checkpoint of step {first_step}" if first_step else "from the start"
    return {
        "parameters": f"{count_parameters(params):,}, {held:,.1f} MB on each device",
        "attention": f"{' + '.join(program.experiment.model.pattern)} ({kernels})",
        "mesh": f"{program.mesh.size} x {jax.devices()[0].device_kind}: {axes}",
        **program.task.summary(),
        "training": f"{program.experiment.train.steps:,} steps {start}, "
        f"{program.tokens_per_step:,} tokens per step",
    }


def training_kernels(program: Program[Objective]) -> list[str]:
    """The name of the attention kernel that each layer of a training step runs."""
    train, length = program.experiment.train, program.task.sequence_length
    rows = train.batch_size // train.accumulate_steps
    with jax.set_mesh(program.mesh):
        return kernels_of(program.model, program.abstract_state.params, rows, length)


def summary_of(
    program: Program[Task], params: Any, lines: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """What training adds to summary.json, from its lines of metrics."""
    e, t = program.experiment, program.experiment.train
    last, seconds = last_metrics_and_speed(lines)
    tokens_per_second = program.tokens_per_step / seconds if seconds else 0.0
    summary: dict[str, Any] = {
        "step": t.steps,
        "train": last,
        "tokens_seen": t.steps * program.tokens_per_step,
        "tokens_per_second": tokens_per_second,
        "attention": list(e.model.pattern),
        "num_params": count_parameters(params),
        "git_revision": git_revision(),
        "device": program.mesh.devices.flat[0].device_kind,
        "jax": jax.__version__,
    }
    utilization = model_flops_utilization(tokens_per_second, flops_per_token(program))
    return summary if utilization is None else {**summary, "mfu": utilization}


def window_tags(values: Mapping[str, float]) -> dict[str, float]:
    """The means of a window of steps by their tag."""
    return {
        f"{OPTIM if name.partition('/')[0] in KINDS else TRAIN}/{name}": value
        for name, value in values.items()
    }


def last_metrics_and_speed(
    lines: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, float], float]:
    """The means of the last window of training steps, but not those of each layer, and the speed.

    That is seconds per step, the mean over the lines that were timed; 0 where none was.
    """
    last: Mapping[str, Any] = {}
    seconds, timed = 0.0, 0
    for line in lines:
        if LEARNING_RATE in line:
            last = line
        if STEP_SECONDS in line:
            seconds, timed = seconds + line[STEP_SECONDS], timed + 1
    names = {tag: tag.split("/") for tag in last if tag != LEARNING_RATE}
    metrics = {
        name[1]: last[tag]
        for tag, name in names.items()
        if name[0] in (TRAIN, OPTIM) and len(name) == 2
    }
    return metrics, seconds / max(timed, 1)


def flops_per_token(program: Program[Task]) -> float:
    task = program.task
    return train_flops_per_token(program.experiment.model, task.io, task.sequence_length)
