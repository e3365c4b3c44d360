"""Folders of runs as training leaves them, with losses of documents that a test makes up."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hyla_lm.input.packing import Documents
from hyla_lm.run.evaluation import DocumentLosses

FACTS = {
    "identity": {"tokenizer": "t", "validation rows": "v"},
    "tokens_per_step": 100,
    "flops_per_token": 10.0,
    "environment": {"device": "1 x cpu"},
}


def documents(nats: Sequence[float], bytes_each: float = 100.0) -> Documents:
    """A document a row, each of ten tokens."""
    count = len(nats)
    rows, zeros, tens = np.arange(count), np.zeros(count, int), np.full(count, 10)
    return Documents(rows, zeros, np.asarray(nats, float), tens, np.full(count, bytes_each))


def write_run(
    folder: Path,
    evaluations: Mapping[int, Documents],
    settings: str = "",
    seed: int = 0,
    step_seconds: float = 2.0,
    facts: Mapping[str, object] = FACTS,
) -> str:
    """A run with a window of timed steps before each evaluation; returns its folder."""
    (folder / "documents").mkdir(parents=True)
    (folder / "config.gin").write_text(f"{settings}\nTrainConfig.seed = {seed}\n")
    lines = []
    for step, found in evaluations.items():
        speed = {"optim/learning_rate": 0.1, "perf/step_seconds": step_seconds}
        loss = found.nats_N.sum() / found.tokens_N.sum()
        lines += [{"step": step, **speed}, {"step": step, "validation/loss_nats": loss}]
        content = DocumentLosses(step, {"": found}, dict(facts)).to_bytes()
        (folder / "documents" / f"{step}.npz").write_bytes(content)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return str(folder)
