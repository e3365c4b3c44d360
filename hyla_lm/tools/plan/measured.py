"""Steps that others measured on TPU, in measured.json, each with its source and configuration."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.flops import PEAK_FLOPS, train_flops_per_token


@dataclass(frozen=True)
class Run:
    """A dense softmax decoder with an untied head; `batch_size` counts the rows of all chips.

    `published` is the figure of the source that `step_seconds` follows from; `extra` says why a run
    is outside the range of plans, whose chips and sizes it does not share.
    """

    program: str
    parameters: str
    source: str
    published: str
    chip: str
    chips: int
    model: dict[str, Any]
    vocab_size: int
    sequence_length: int
    batch_size: int
    optimizer: str
    step_seconds: float
    extra: str = ""

    @property
    def roofline(self) -> float:
        """Seconds of a step's model FLOPs at the peak of the chips."""
        model = ModelConfig(**self.model, attention="softmax", tie_embeddings=False)
        flops = train_flops_per_token(model, Tokens(self.vocab_size), self.sequence_length)
        peak = self.chips * PEAK_FLOPS[f"TPU {self.chip}"]
        return self.batch_size * self.sequence_length * flops / peak

    @property
    def factor(self) -> float:
        """The measured step over its roofline, which is 1 / MFU."""
        return self.step_seconds / self.roofline


@cache
def measured_runs() -> tuple[Run, ...]:
    rows = json.loads(Path(__file__).with_name("measured.json").read_text())
    return tuple(Run(**row) for row in rows)


@cache
def factors() -> tuple[float, float]:
    """The least and the greatest factor of the runs that are not extra."""
    found = [run.factor for run in measured_runs() if not run.extra]
    return min(found), max(found)


def basis() -> str:
    """What the range of a plan rests on, in a sentence."""
    low, high = factors()
    runs = measured_runs()
    inside = sum(low <= run.factor <= high for run in runs)
    used = sum(not run.extra for run in runs)
    return (
        f"{used} measured steps of dense softmax models took {low:.1f} to {high:.1f} times their "
        f"roofline; with larger models and v4, {inside} of {len(runs)} did "
        "(hyla_lm/tools/plan/measured.json). HYLA was not measured on a TPU."
    )
