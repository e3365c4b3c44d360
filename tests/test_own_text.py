"""The three commands for text of one's own, as processes: prepare, train, sample."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOSS = "train/loss_nats"
SMALL = (
    *("TrainConfig.steps=40", "TrainConfig.eval_every=40", "LogConfig.every=10"),
    *("OptimizerConfig.warmup_steps=5", "ModelConfig.model_dim=32", "ModelConfig.num_heads=2"),
    *("ModelConfig.head_dim=16", "ModelConfig.mlp_dim=64", "LanguageModel.validation_rows=8"),
    *("SEQUENCE_LENGTH=64", "CheckpointConfig.every=40", "ModelConfig.num_layers=1"),
)


def sentence(rng: random.Random) -> str:
    """A grammar: the subject decides the verb, and the verb the object."""
    subjects, verbs = ["The miller", "A soldier", "The old queen"], ["grinds", "guards", "crowns"]
    objects = [["corn", "rye"], ["a gate", "a bridge"], ["her son", "a stranger"]]
    kind = rng.randrange(3)
    return f"{subjects[kind]} {verbs[kind]} {rng.choice(objects[kind])} at {rng.randrange(24)}."


def write_text(folder: Path) -> None:
    """2 MB of sentences in 40 files."""
    folder.mkdir()
    for index in range(40):
        rng = random.Random(index)
        lines = "\n".join(sentence(rng) for _ in range(1600))
        (folder / f"{index}.txt").write_text(lines)


def hyla_lm(place: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "hyla_lm", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_folder_of_text_becomes_a_model(tmp_path: Path) -> None:
    write_text(tmp_path / "my_text")
    source = ["--input", "my_text", "--output", "rows", "--train_tokenizer"]
    said = hyla_lm(tmp_path, "data", "prepare", *source, "--sequence_length=64")
    assert "documents: 40" in said and "--gin.SEQUENCE_LENGTH=64" in said
    bindings = [f"--gin.{binding}" for binding in SMALL]
    hyla_lm(tmp_path, "train", "--gin_file=gin/own_text.gin", "--workdir=runs/mine", *bindings)
    lines = (tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines()
    losses = [entry[LOSS] for entry in map(json.loads, lines) if LOSS in entry]
    assert losses[-1] < 0.7 * losses[0]
    text = hyla_lm(
        tmp_path, "sample", "--workdir=runs/mine", "--prompt=The miller", "--max_tokens=16"
    )
    assert text.startswith("The miller") and len(text.strip()) > len("The miller") + 5
