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
    Tag("train/loss_nats", "Training cross-entropy, nats per token.", LOSS),
    Tag("train/bits_per_byte", "Training cross-entropy, bits per byte of text.", BITS_PER_BYTE),
    Tag("train/accuracy", "Share of targets that were the likeliest by the model.", ACCURACY),
    Tag("train/code_loss", "Auxiliary loss on the latent codes, without its weight (CodeLoss)."),
    Tag("train/*", "Mean over the training steps since the point before."),
    Tag("validation/*loss_nats", "Cross-entropy of a validation set, nats per token.", LOSS),
    Tag(
        "validation/*bits_per_byte", "Cross-entropy of a set, bits per byte of text.", BITS_PER_BYTE
    ),
    Tag("validation/*accuracy", "Share of a set's targets that were the likeliest.", ACCURACY),
    Tag("validation/*", "Mean over a set that is not trained on."),
    Tag("optim/learning_rate", "Learning rate of the last update."),
    Tag("optim/skipped_updates", "Updates skipped since step 0 (UpdatePolicy)."),
    Tag("optim/gradient_norm", "Norm of all gradients before clipping; mean over the steps."),
    Tag("optim/gradient_norm/*", "Gradient norm of one layer.", "Layers: gradient norm"),
    Tag("optim/update_norm", "Norm of what the optimizer adds in a step; mean over the steps."),
    Tag("optim/update_norm/*", "Norm of one layer's update.", "Layers: update norm"),
    Tag("optim/parameter_norm", "Norm of all parameters after the update; mean over the steps."),
    Tag("optim/parameter_norm/*", "Parameter norm of one layer.", "Layers: parameter norm"),
    Tag("optim/parameter_values/*", "Histogram of the parameters of one layer."),
    Tag(
        "attention/score_rms/*",
        "Root mean square of the scores q.k / sqrt(K) + bias of one layer, at visible pairs.",
    ),
    Tag(
        "attention/score_max/*", "Largest magnitude of a score of a layer.", "Layers: largest score"
    ),
    Tag(
        "attention/entropy/*",
        "Entropy over keys of one layer's softmax, nats; mean over queries and heads.",
        "Layers: entropy of attention",
    ),
    Tag(
        "attention/code_rank/*",
        "Effective rank of one layer's latent code, from 1 to the number of heads: the "
        "participation ratio of its covariance over heads, at visible pairs.",
        "Layers: effective rank of the latent code",
    ),
    Tag("attention/dead_units/*", "Share of value units that are zero for every visible pair."),
    Tag("attention/code_values/*", "Histogram of one layer's latent code, at visible pairs."),
    Tag("attention/unit_values/*", "Histogram of one layer's value units, at visible pairs."),
    Tag(
        "attention/code_picture/*",
        "Latent code of one layer for a validation row, queries down and keys across. Red, green "
        "and blue are its first three principal components over heads; masked pairs are white.",
    ),
    Tag(
        "attention/head_pictures/*",
        "Latent code of one layer, heads side by side: red is positive, blue negative, grey zero.",
    ),
    Tag("perf/step_seconds", "Seconds per training step, without what is done between steps."),
    Tag("perf/tokens_per_second", "Training speed of all devices, without what is between steps."),
    Tag("perf/tokens_per_second_per_chip", "Training speed divided by the number of devices."),
    Tag("perf/mfu", "Share of the devices' bfloat16 peak that the model's operations reach."),
    Tag("perf/data_wait_share", "Share of the time of steps in which training waited for data."),
    Tag("perf/device_memory_gb", "GB (10^9) in use on the fullest device of process 0."),
    Tag("perf/device_memory_peak_gb", "Most GB (10^9) in use so far on a device of process 0."),
    Tag("perf/host_memory_gb", "GB (10^9) of memory of process 0 on its host."),
    Tag("perf/compile_seconds", "Seconds of compiling the train step, once per process."),
    Tag("perf/save_seconds", "Seconds in which training waited for a save to start.", SECONDS),
    Tag("perf/evaluation_seconds", "Seconds of an evaluation of the validation sets.", SECONDS),
    Tag("perf/details_seconds", "Seconds of attention diagnostics.", SECONDS),
    Tag("perf/goodput", "Share of all processes' time that went into steps of the final run."),
    Tag("perf/*", "Speed or cost of the run."),
    Tag("canary/loss", "Loss of the kernel that trains, on the rows of the canary."),
    Tag("canary/reference_loss", "Loss of the reference kernel, on the rows of the canary."),
    Tag("canary/loss_difference", "Relative difference of the losses of the two kernels."),
    Tag("canary/gradient_difference", "Relative difference of the gradients of the two kernels."),
    Tag("suites/*_standard_error", "Standard error, over seeds, of a metric of a suite's models."),
    Tag("suites/*", "Mean over seeds of a metric of small models with this run's attention."),
)


def description(tag: str) -> str:
    """The sentence of a tag; empty for one that nothing describes."""
    fitting = (row.description for row in TAGS if fnmatchcase(tag, row.pattern))
    return next(fitting, "")
