"""What a run says of itself: rows at its start, summary.json."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import jax

from hyla_lm.diagnostics.norms import KINDS
from hyla_lm.model.config import ModelConfig
from hyla_lm.model.flops import (
    count_applied_parameters,
    count_parameters,
    model_flops_utilization,
    train_flops_per_token,
)
from hyla_lm.model.inspection import kernels_of
from hyla_lm.optim import OptimizerConfig, span_of_fall
from hyla_lm.package import git_revision
from hyla_lm.parallel.mesh import AXES
from hyla_lm.parallel.sharding import bytes_on_device
from hyla_lm.run.program import Program
from hyla_lm.tasks.protocol import Objective, Task

TRAIN, OPTIM = "train", "optim"
LEARNING_RATE = f"{OPTIM}/learning_rate"
STEP_SECONDS = "perf/step_seconds"
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon and AdamW"}


def startup_lines(program: Program[Task], params: Any, first_step: int) -> dict[str, str]:
    """What a person wants to know before the first step."""
    e = program.experiment
    c, o, t = e.model, e.optimizer, e.train
    unique = count_parameters(params)
    applied = count_applied_parameters(params, c, program.task.io)
    held = bytes_on_device(program.abstract_state.params, program.mesh) / 1e6
    kernels = ", ".join(dict.fromkeys(training_kernels(program)))
    axes = ", ".join(f"{axis} {program.mesh.shape[axis]}" for axis in AXES)
    tokens = program.tokens_per_step
    start = f"from the checkpoint of step {first_step}" if first_step else "from the start"
    return {
        "model": f"{c.num_layers} layers, D {c.model_dim}, {c.num_heads} heads of {c.head_dim}, "
        f"F {c.mlp_dim} {c.feedforward}, {c.positions} positions, {c.dtype}{modern_parts(c)}",
        "parameters": f"{unique:,} unique, {applied:,} as applied, {held:,.1f} MB on each device",
        "attention": f"{' + '.join(c.pattern)} ({kernels})",
        "mesh": f"{program.mesh.size} x {jax.devices()[0].device_kind}: {axes}",
        **program.task.summary(),
        "batch": f"{t.batch_size} rows, {tokens:,} tokens per step"
        + (f" in {t.accumulate_steps} micro-batches" if t.accumulate_steps > 1 else ""),
        "schedule": f"{t.steps:,} steps {start}; {_OPTIMIZERS[o.optimizer]}, learning rate 0 to "
        f"{o.learning_rate:g} in {o.warmup_steps:,} steps, {_fall(o, t.steps)} to "
        f"{o.learning_rate * o.final_fraction:g}",
    }


def modern_parts(c: ModelConfig) -> str:
    """The parts that a plain model lacks, each after a comma."""
    parts = {
        "RMSNorm": c.norm == "rms",
        "QK-norm": c.qk_norm,
        f"{c.num_kv_heads} key-value heads": c.num_kv_heads is not None,
        "gated attention": c.gated_attention,
        f"logits capped at {c.logit_soft_cap}": c.logit_soft_cap is not None,
    }
    return "".join(f", {part}" for part, is_on in parts.items() if is_on)


def _fall(config: OptimizerConfig, steps: int) -> str:
    """How the learning rate falls, and from which step unless that is the end of the warm-up."""
    begin, _ = span_of_fall(config, steps, config.warmup_steps)
    begins = "" if begin == config.warmup_steps else f" from step {begin:,}"
    return f"{'cosine' if config.schedule == 'cosine' else config.decay_shape}{begins}"


def training_kernels(program: Program[Objective]) -> list[str]:
    """The name of the attention kernel that each layer of a training step runs."""
    train, length = program.experiment.train, program.task.sequence_length
    rows = train.batch_size // train.accumulate_steps
    with jax.set_mesh(program.mesh):
        return kernels_of(program.model, program.abstract_state.params, rows, length)


def summary_of(
    program: Program[Task], params: Any, lines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What training adds to summary.json, from its lines of metrics."""
    e, t = program.experiment, program.experiment.train
    seconds = seconds_per_step(lines)
    tokens_per_second = program.tokens_per_step / seconds if seconds else 0.0
    summary: dict[str, Any] = {
        "step": t.steps,
        "train": last_training_metrics(lines),
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


def is_window(line: Mapping[str, Any]) -> bool:
    """Whether a line is of training steps."""
    return LEARNING_RATE in line


def last_training_metrics(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The means of the last window of training steps."""
    last: Mapping[str, Any] = next(filter(is_window, reversed(lines)), {})
    groups = {tag: tag.partition("/") for tag in last if tag != LEARNING_RATE}
    return {
        name: last[tag]
        for tag, (group, _, name) in groups.items()
        if group in (TRAIN, OPTIM) and "/" not in name
    }


def seconds_per_step(lines: Sequence[Mapping[str, Any]]) -> float:
    """The mean over the lines of training that were timed; 0 where none was."""
    timed = [line[STEP_SECONDS] for line in lines if STEP_SECONDS in line]
    return fmean(timed) if timed else 0.0


def flops_per_token(program: Program[Task]) -> float:
    task = program.task
    return train_flops_per_token(program.experiment.model, task.io, task.sequence_length)
