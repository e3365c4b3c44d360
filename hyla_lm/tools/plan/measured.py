"""Steps that others measured on TPU, in measured.json, each with its source and configuration.

All are of dense softmax decoders with untied heads; `batch_size` counts the rows of all chips, and
`step_seconds` follows from the `published` figure. `extra` says why a run is outside the range.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.flops import PEAK_FLOPS, train_flops_per_token

Run = dict[str, Any]


@cache
def measured_runs() -> list[Run]:
    """The runs, each with its `roofline`: seconds of a step's model FLOPs at the peak.

    `factor` is the measured step over its roofline, which is 1 / MFU.
    """
    runs = json.loads(Path(__file__).with_name("measured.json").read_text())
    for run in runs:
        model = ModelConfig(**run["model"], attention="softmax", tie_embeddings=False)
        length = run["sequence_length"]
        flops = train_flops_per_token(model, Tokens(run["vocab_size"]), length)
        peak = run["chips"] * PEAK_FLOPS[f"TPU {run['chip']}"]
        run["roofline"] = run["batch_size"] * length * flops / peak
        run["factor"] = run["step_seconds"] / run["roofline"]
    return runs


def factors() -> tuple[float, float]:
    """The least and the greatest factor of the runs that are not extra."""
    found = [run["factor"] for run in measured_runs() if "extra" not in run]
    return min(found), max(found)


def basis() -> str:
    """What the range of a plan rests on, in a sentence."""
    low, high = factors()
    runs = measured_runs()
    inside = sum(low <= run["factor"] <= high for run in runs)
    used = sum("extra" not in run for run in runs)
    return (
        f"{used} measured steps of dense softmax models took {low:.1f} to {high:.1f} times their "
        f"roofline; with larger models and v4, {inside} of {len(runs)} did "
        "(hyla_lm/tools/plan/measured.json). HYLA was not measured on a TPU."
    )
