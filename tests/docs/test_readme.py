"""The README's commands for text of one's own, run as processes."""

import json
import random
import shlex
from pathlib import Path

from tests.docs.commands import ROOT, output_of

README = (ROOT / "README.md").read_text()
LOSS = "train/loss_nats"
SMALL = (
    *("TrainConfig.steps=40", "TrainConfig.eval_every=40", "LogConfig.every=10"),
    *("OptimizerConfig.warmup_steps=5", "ModelConfig.model_dim=32", "ModelConfig.num_heads=2"),
    *("ModelConfig.head_dim=16", "ModelConfig.mlp_dim=64", "LanguageModel.validation_rows=8"),
    *("CheckpointConfig.every=40", "ModelConfig.num_layers=1", "TrainConfig.batch_size=2"),
    "LogConfig.details_every=0",
)


def sentence(rng: random.Random) -> str:
    """A grammar: the subject decides the verb, and the verb the object."""
    subjects, verbs = ["The miller", "A soldier", "The old queen"], ["grinds", "guards", "crowns"]
    objects = [["corn", "rye"], ["a gate", "a bridge"], ["her son", "a stranger"]]
    kind = rng.randrange(3)
    return f"{subjects[kind]} {verbs[kind]} {rng.choice(objects[kind])} at {rng.randrange(24)}."


def write_text(folder: Path) -> None:
    """Half a MB of sentences in 40 files."""
    folder.mkdir()
    for index in range(40):
        rng = random.Random(index)
        lines = "\n".join(sentence(rng) for _ in range(400))
        (folder / f"{index}.txt").write_text(lines)


def test_the_commands_of_the_readme_make_a_model_of_a_folder_of_text(tmp_path: Path) -> None:
    section = README.partition("## Your own text")[2].partition("\n## ")[0]
    prepare, train, sample = section.split("```")[1].strip().splitlines()
    write_text(tmp_path / "my_text")
    assert "documents: 40" in output_of(prepare, tmp_path)
    output_of(train, tmp_path, *(f"--gin.{binding}" for binding in SMALL))
    lines = (tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines()
    losses = [entry[LOSS] for entry in map(json.loads, lines) if LOSS in entry]
    assert losses[-1] < 0.7 * losses[0]
    prompt = shlex.split(sample)[-1].removeprefix("--prompt=")
    text = output_of(sample, tmp_path, "--max_tokens=16")
    assert text.startswith(prompt) and len(text.strip()) > len(prompt) + 5
