"""What the sinks of a run take, and a table of every tag that a run writes.

A tag is a name in metrics.jsonl, such as "train/loss_nats". Sinks may show it under another name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

import numpy as np
from etils import epath


@dataclass(frozen=True)
class Histogram:
    """How many values fall between neighbouring edges: count_N and edge_N1, with their moments."""

    count_N: np.ndarray
    edge_N1: np.ndarray
    sum: float
    sum_squares: float


# Text is Markdown, bytes are a PNG.
Value = float | Histogram | str | bytes
Setting = bool | int | float | str


@dataclass(frozen=True)
class LoggedRun:
    """The run that a sink shows; process 0 opens sinks, just before it trains.

    `folder` has the run's files, on a disk or in a bucket. Steps after `first` are trained now;
    points of `first` and later may be shown already, by a process that was stopped. Runs are
    compared by `settings`, of which the first matter most.
    """

    folder: epath.Path
    first: int
    settings: Mapping[str, Setting] = field(default_factory=dict)


class Sink(Protocol):
    """Takes what one run shows; the values of a call are stored when it returns.

    What it raises ends the run: a UserError with one sentence, Unavailable where the same command
    may succeed later.
    """

    def write(self, step: int, values: Mapping[str, Value]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class SinkConfig(Protocol):
    """A gin-bindable sink: `open_sink` begins to show a run, or resumes it."""

    def open_sink(self, run: LoggedRun) -> Sink: ...


@dataclass(frozen=True)
class Tag:
    """A tag, or a pattern with `*`, what it shows, and the chart that has its curve.

    A chart, written "section: title", has the curves of all tags that name it.
    """

    pattern: str
    description: str
    chart: str = ""


LOSS = "Training and validation: loss, nats per token"
BITS_PER_BYTE = "Training and validation: bits per byte"
ACCURACY = "Training and validation: accuracy"
SECONDS = "Time: seconds of a due action"
# The first pattern that fits a tag describes it.
TAGS = (
    Tag("train/loss_nats", "Cross-entropy of training, in nats per token.", LOSS),
    Tag(
        "train/bits_per_byte",
        "Cross-entropy of training in bits, divided by the UTF-8 bytes of the text.",
        BITS_PER_BYTE,
    ),
    Tag(
        "train/accuracy",
        "Share of the training targets that were the likeliest by the model.",
        ACCURACY,
    ),
    Tag("train/code_loss", "Auxiliary loss on the latent codes, without its weight (CodeLoss)."),
    Tag("train/*", "Mean over the training steps since the point before."),
    Tag("validation/*loss_nats", "Cross-entropy of a validation set, in nats per token.", LOSS),
    Tag(
        "validation/*bits_per_byte",
        "Cross-entropy of a validation set in bits, divided by the UTF-8 bytes of its text.",
        BITS_PER_BYTE,
    ),
    Tag(
        "validation/*accuracy",
        "Share of a validation set's targets that were the likeliest.",
        ACCURACY,
    ),
    Tag("validation/*", "Mean over a set that is not trained on."),
    Tag("optim/learning_rate", "Learning rate of the last update."),
    Tag(
        "optim/skipped_updates",
        "Updates left out since step 0, because their numbers went wrong (UpdatePolicy).",
    ),
    Tag("optim/gradient_norm", "Norm of all gradients before clipping; mean over the steps."),
    Tag(
        "optim/gradient_norm/*",
        "Norm of the gradients of one layer before clipping; mean over the steps.",
        "Layers: norm of the gradients by layer",
    ),
    Tag(
        "optim/update_norm",
        "Norm of what the optimizer adds to all parameters in a step; mean over the steps.",
    ),
    Tag(
        "optim/update_norm/*",
        "Norm of what the optimizer adds to the parameters of one layer; mean over the steps.",
        "Layers: norm of the updates by layer",
    ),
    Tag("optim/parameter_norm", "Norm of all parameters after the update; mean over the steps."),
    Tag(
        "optim/parameter_norm/*",
        "Norm of the parameters of one layer after the update; mean over the steps.",
        "Layers: norm of the parameters by layer",
    ),
    Tag("optim/parameter_values/*", "Histogram of the parameters of one layer."),
    Tag(
        "attention/score_rms/*",
        "Root mean square of the scores q.k / sqrt(K) + bias of one layer, before normalisation, "
        "over visible pairs.",
    ),
    Tag(
        "attention/score_max/*",
        "Largest magnitude of a score of one layer, before normalisation, over visible pairs.",
        "Layers: largest score by layer",
    ),
    Tag(
        "attention/entropy/*",
        "Entropy over the keys of the softmax of one layer, in nats; mean over queries and heads.",
        "Layers: entropy of attention by layer",
    ),
    Tag(
        "attention/code_rank/*",
        "Effective rank of the latent code of one layer, from 1 to the number of heads: the "
        "participation ratio of its covariance over heads, at visible pairs.",
        "Layers: effective rank of the latent code by layer",
    ),
    Tag(
        "attention/dead_units/*",
        "Share of the value units of one layer that are zero for every visible pair.",
    ),
    Tag(
        "attention/code_values/*",
        "Histogram of the latent code of one layer, over heads and visible pairs.",
    ),
    Tag(
        "attention/unit_values/*",
        "Histogram of the value units of one layer, over visible pairs.",
    ),
    Tag(
        "attention/code_picture/*",
        "Latent code of one layer for a validation row, queries down and keys across. Red, green "
        "and blue are its first three principal components over heads; masked pairs are white.",
    ),
    Tag(
        "attention/head_pictures/*",
        "Latent code of one layer for a validation row, the heads side by side: red is positive, "
        "blue negative, light grey zero; masked pairs are white.",
    ),
    Tag("perf/step_seconds", "Seconds per training step, without due actions such as evaluation."),
    Tag(
        "perf/tokens_per_second",
        "Training speed of all devices together, without due actions such as evaluation.",
    ),
    Tag("perf/tokens_per_second_per_chip", "Training speed divided by the number of devices."),
    Tag(
        "perf/mfu",
        "Share of the devices' bfloat16 peak that the model's own operations reach, by formula.",
    ),
    Tag("perf/data_wait_share", "Share of the time of steps in which training waited for data."),
    Tag(
        "perf/device_memory_gb",
        "Memory in use on the fullest device of the first process, in GB of 10^9 bytes.",
    ),
    Tag(
        "perf/device_memory_peak_gb",
        "Largest memory in use so far on a device of the first process, in GB of 10^9 bytes.",
    ),
    Tag("perf/host_memory_gb", "Memory of the first process on its host, in GB of 10^9 bytes."),
    Tag("perf/compile_seconds", "Seconds that compiling the train step took, once per process."),
    Tag("perf/save_seconds", "Seconds in which training waited for a save to start.", SECONDS),
    Tag("perf/evaluation_seconds", "Seconds of an evaluation of the validation sets.", SECONDS),
    Tag("perf/details_seconds", "Seconds of attention diagnostics.", SECONDS),
    Tag(
        "perf/goodput",
        "Share of the processes' time, over all restarts, that went into steps of the final run.",
    ),
    Tag("perf/*", "Speed or cost of the run."),
    Tag("canary/loss", "Loss of the kernel that trains, on the rows of the canary."),
    Tag("canary/reference_loss", "Loss of the reference kernel, on the rows of the canary."),
    Tag(
        "canary/loss_difference",
        "Relative difference of the loss of the kernel that trains from the reference's.",
    ),
    Tag(
        "canary/gradient_difference",
        "Relative difference of the gradients of the kernel that trains from the reference's.",
    ),
    Tag(
        "suites/*_standard_error",
        "Standard error, over seeds, of a metric of small models with this run's attention.",
    ),
    Tag("suites/*", "Mean over seeds of a metric of small models with this run's attention."),
)


def description(tag: str) -> str:
    """The sentence of a tag; empty for one that nothing describes."""
    fitting = (row.description for row in TAGS if fnmatchcase(tag, row.pattern))
    return next(fitting, "")
