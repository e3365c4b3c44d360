"""Latent codes of all runs of an experiment: which are looked at, once each."""

import json
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.cli.main import main
from hyla_lm.evals.experiments import results
from hyla_lm.evals.experiments.results import Result
from hyla_lm.evals.latent_codes import look
from hyla_lm.evals.latent_codes.samples import Choices

POINT = {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 100}
SCORES = {"mean": {"auc": 0.6, "f1": 0.3, "majority_f1": 0.0, "always_f1": 0.2}}
CODES = {
    "step": 10,
    "decoding": {name: {"0": SCORES, "all": SCORES} for name in ("in_distribution", "held_out")},
    "effective_rank": {"held_out": [2.0]},
    "code_size": 8,
    "value_units": [{"units": 4, "dead": 1, "share": 0.25}],
}


def result(seed: int, **summary: Any) -> Result:
    made_on = {"device": "cpu", "jax": "0.10.2", "git_revision": None}
    summary = {"train": {}, "validation": {}, "diverged_at": None, **made_on, **summary}
    place = ("fuzzy_logic", "paper", "table_a1", "hyla")
    return Result(*place, seed, POINT, "covering", 10, 1.0, [], "c", summary)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of codes that were looked at."""
    folders: list[Path] = []

    def look_at(workdir: str, step: None, choices: Choices, tsne: int, out: Path) -> dict[str, Any]:
        folders.append(out)
        return CODES

    monkeypatch.setattr(look, "look_at", look_at)
    return folders


def test_each_run_is_looked_at_once_with_the_same_choices(
    tmp_path: Path, looks: list[Path]
) -> None:
    runs = [result(0), result(1), result(2, diverged_at=3)]
    for run in runs:
        results.write(tmp_path / "results", run)
        (tmp_path / run.folder).mkdir(parents=True)
    command = ["evals", "latent_codes", str(tmp_path)]
    assert main([*command, "--fixed=query"]) == 0
    assert looks == [tmp_path / run.folder / "latent_codes" / "fixed_query" for run in runs[:2]]
    assert main([*command, "--fixed=query"]) == 0
    assert len(looks) == 2
    assert main(command) == main([*command, "--fixed=query", "--seed=1"]) == 0
    assert len(looks) == 6
    paths = (tmp_path / "latent_codes").glob("*query.json")
    assert [json.loads(path.read_text())["choices"]["seed"] for path in paths] == [1, 1]
    report = (tmp_path / "report.md").read_text()
    assert report.count("| HYLA | fixed") == 2
    assert f"hyla-lm evals latent_codes {tmp_path} --fixed=query --seed=1" in report
