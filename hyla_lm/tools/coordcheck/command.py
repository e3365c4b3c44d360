"""hyla-lm coordcheck: trains small models of several widths, measures, reports."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hyla_lm.attention.attend import VARIANTS
from hyla_lm.config.declare import wrong_choice
from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.tasks.protocol import Batch, TaskConfig
from hyla_lm.tools.coordcheck import figure, report
from hyla_lm.tools.coordcheck.measure import Training, measure
from hyla_lm.tools.coordcheck.widths import MUP, STANDARD, family

NOT_FLAT = 1


@dataclass(frozen=True)
class Asked:
    """What the command line asks for, checked."""

    widths: tuple[int, ...]
    variants: tuple[str, ...]
    steps: int
    seeds: int
    grow: str
    kinds: tuple[str, ...]


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Prints the slopes; status 1 if --bound is given and a judged slope exceeds it."""
    asked = _asked(options)
    if options.output:
        figure.load_matplotlib()
    experiment = read_experiment(options.gin_file, bindings)
    base = replace(experiment.model, dtype="float32", scan_layers=False)
    families = {
        (variant, kind): family(replace(base, attention=variant), asked.widths, asked.grow, kind)
        for variant in asked.variants
        for kind in asked.kinds
    }
    training = _training(experiment, asked, options.random_tokens)
    found, losses = _measure(families, training, asked)
    bound = 0.1 if options.bound is None else options.bound
    print("\n".join(report.table(found, asked.widths, bound)).lstrip())
    judged = MUP if MUP in asked.kinds else STANDARD
    over = report.exceeding(found, judged, bound)
    print(_verdict(judged, over, bound))
    if options.output:
        _write(Path(options.output), experiment, asked, found, losses)
    return NOT_FLAT if over and options.bound is not None else 0


def _asked(options: argparse.Namespace) -> Asked:
    widths = tuple(_number("--widths", text) for text in options.widths.split(","))
    if len(widths) < 2 or sorted(set(widths)) != list(widths):
        raise UserError(f"--widths={options.widths} must be two or more rising numbers.")
    variants = tuple(options.variants.split(","))
    for name in variants:
        if name not in VARIANTS:
            raise wrong_choice(f"--variants={options.variants}", name, VARIANTS)
    for name in ("steps", "seeds"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name}={getattr(options, name)} must be at least 1.")
    if options.bound is not None and not options.bound > 0:
        raise UserError(f"--bound={options.bound} must be above 0.")
    kinds = (options.only,) if options.only else (STANDARD, MUP)
    return Asked(widths, variants, options.steps, options.seeds, options.grow, kinds)


def _number(flag: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise UserError(f"{flag}: {text!r} is no positive whole number.")
    return int(text)


def _training(experiment: Experiment, asked: Asked, random_tokens: bool) -> Training:
    train = experiment.train
    seeds = range(train.seed, train.seed + asked.seeds)
    assert train.task is not None
    if random_tokens:
        objective, batch = _random(train.task, train.batch_size)
        return Training(objective, [batch] * asked.steps, experiment.optimizer, seeds)
    task = train.task.prepare_task(train.batch_size)
    stream = task.train_stream(BatchShard(train.batch_size, train.seed), None)
    try:
        batches = [next(stream) for _ in range(asked.steps)]
    finally:
        stream.close()
    return Training(task, batches, experiment.optimizer, seeds)


def _random(task: TaskConfig, batch_size: int) -> tuple[Any, Batch]:
    """An objective without data and a batch of random tokens for it."""
    objective = task.planned_objective()
    if not isinstance(objective.io, Tokens):
        raise UserError(
            f"--random_tokens: TrainConfig.task = @{type(task).__name__}() takes no tokens: "
            "leave the flag out."
        )
    shape = objective.batch_shapes(batch_size)["tokens"].shape
    tokens = np.random.default_rng(0).integers(objective.io.vocab_size, size=shape, dtype=np.int32)
    rows = np.arange(batch_size, dtype=np.int32)
    return objective, {"tokens": tokens, "text_bytes": np.ones_like(rows), "row": rows}


def _measure(
    families: dict[tuple[str, str], list[ModelConfig]], training: Training, asked: Asked
) -> tuple[list[report.Slope], dict[str, Any]]:
    found, losses = [], {}
    for (variant, kind), models in families.items():
        measured = {}
        for model in models:
            print(f"{variant}, {kind}, width {model.model_dim}", file=sys.stderr, flush=True)
            measured[model.model_dim] = measure(model, training)
        found += report.slopes(variant, kind, asked.grow, measured)
        losses[f"{variant} {kind}"] = {w: m.loss.tolist() for w, m in measured.items()}
    return found, losses


def _verdict(kind: str, over: Sequence[report.Slope], bound: float) -> str:
    if not over:
        return f"\n{kind}: every judged slope is within {bound} of flat."
    worst = max(over, key=lambda s: abs(s.slope))
    place = f"{worst.variant}, {worst.quantity}, {worst.part} at step {worst.step}"
    return (
        f"\n{kind}: {len(over)} judged slopes are not within {bound} of flat; the steepest "
        f"is {worst.slope:+.2f} ({place})."
    )


def _write(
    folder: Path,
    experiment: Experiment,
    asked: Asked,
    found: list[report.Slope],
    losses: dict[str, Any],
) -> None:
    settings = {"widths": asked.widths, "steps": asked.steps, "seeds": asked.seeds}
    text = report.as_json(found, {**settings, "grow": asked.grow, "gin": experiment.text}, losses)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coordcheck.json").write_text(json.dumps(text) + "\n")
    (folder / "coordcheck.png").write_bytes(figure.draw(found, asked.widths))
    print(f"wrote {folder}/coordcheck.json and {folder}/coordcheck.png")
