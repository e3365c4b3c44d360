"""What the sinks of a run take, and a table of every tag that a run writes.

A tag is a name in metrics.jsonl, such as "train/loss_nats". Sinks may show it under another name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
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


@dataclass(frozen=True)
class LoggedRun:
    """The run that a sink shows; process 0 opens sinks, just before it trains.

    `folder` has the run's files, on a disk or in a bucket. Steps after `first` are trained now;
    points of `first` and later may be shown already, by a process that was stopped.
    """

    folder: epath.Path
    first: int


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


# What a tag shows, by its name or a pattern with `*`; the first that fits describes it.
TAGS: Mapping[str, str] = MappingProxyType(
    {
        "train/loss_nats": "Training cross-entropy, nats per token.",
        "train/bits_per_byte": "Training cross-entropy, bits per byte of text.",
        "train/accuracy": "Share of targets that were the likeliest by the model.",
        "train/*": "Mean over the training steps since the point before.",
        "validation/*loss_nats": "Cross-entropy of a validation set, nats per token.",
        "validation/*bits_per_byte": "Cross-entropy of a set, bits per byte of text.",
        "validation/*accuracy": "Share of a set's targets that were the likeliest.",
        "validation/*": "Mean over a set that is not trained on.",
        "optim/learning_rate": "Learning rate of the last update.",
        "optim/skipped_updates": "Updates skipped since step 0 (UpdatePolicy).",
        "optim/gradient_norm": "Norm of all gradients before clipping; mean over the steps.",
        "optim/gradient_norm/*": "Gradient norm of one layer.",
        "optim/update_norm": "Norm of what the optimizer adds in a step; mean over the steps.",
        "optim/update_norm/*": "Norm of one layer's update.",
        "optim/parameter_norm": "Norm of all parameters after the update; mean over the steps.",
        "optim/parameter_norm/*": "Parameter norm of one layer.",
        "attention/score_rms/*": (
            "Root mean square of the scores q.k / sqrt(K) + bias of one layer, at visible pairs."
        ),
        "attention/score_max/*": "Largest magnitude of a score of a layer.",
        "attention/entropy/*": (
            "Entropy over keys of one layer's softmax, nats; mean over queries and heads."
        ),
        "attention/code_rank/*": (
            "Effective rank of one layer's latent code, from 1 to the number of heads: the "
            "participation ratio of its covariance over heads, at visible pairs."
        ),
        "attention/dead_units/*": "Share of value units that are zero for every visible pair.",
        "attention/code_values/*": "Histogram of one layer's latent code, at visible pairs.",
        "attention/head_pictures/*": (
            "Latent code of one layer, heads side by side: red is positive, blue negative, "
            "grey zero."
        ),
        "perf/step_seconds": "Seconds per training step, without what is done between steps.",
        "perf/tokens_per_second": "Training speed of all devices, without what is between steps.",
        "perf/tokens_per_second_per_chip": "Training speed divided by the number of devices.",
        "perf/mfu": "Share of the devices' bfloat16 peak that the model's operations reach.",
        "perf/data_wait_share": "Share of the time of steps in which training waited for data.",
        "perf/device_memory_gb": "GB (10^9) in use on the fullest device of process 0.",
        "perf/device_memory_peak_gb": "Most GB (10^9) in use so far on a device of process 0.",
        "perf/host_memory_gb": "GB (10^9) of memory of process 0 on its host.",
        "perf/compile_seconds": "Seconds of compiling the train step, once per process.",
        "perf/save_seconds": "Seconds in which training waited for a save to start.",
        "perf/evaluation_seconds": "Seconds of an evaluation of the validation sets.",
        "perf/details_seconds": "Seconds of attention diagnostics.",
        "perf/*": "Speed or cost of the run.",
        "suites/*_standard_error": "Standard error, over seeds, of a metric of a suite's models.",
        "suites/*": "Mean over seeds of a metric of small models with this run's attention.",
    }
)


def description(tag: str) -> str:
    """The sentence of a tag; empty for one that nothing describes."""
    return next((text for pattern, text in TAGS.items() if fnmatchcase(tag, pattern)), "")
