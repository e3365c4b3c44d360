"""Latent codes of all runs of an experiment: which are looked at, and the table of their means."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.errors import UserError
from hyla_lm.evals.__main__ import main
from hyla_lm.evals.experiments import results
from hyla_lm.evals.experiments.results import Result, sections
from hyla_lm.evals.latent_codes import look as latent_code
from hyla_lm.evals.latent_codes import table as latent_table
from hyla_lm.evals.latent_codes.samples import Choices
from hyla_lm.evals.latent_codes.table import Decoded

POINT = {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 100}
FUZZY_MEANS = {"auc": 0.6, "f1": 0.3, "majority_f1": 0.0, "always_f1": 0.2}
RULE_SCORES = {
    "accuracy": 0.5,
    "majority_accuracy": 0.2,
    "macro_f1": 0.4,
    "majority_macro_f1": 0.04,
}


def result(row: str, seed: int, suite: str = "fuzzy_logic", **summary: Any) -> Result:
    made_on = {"device": "cpu", "jax": "0.10.2", "git_revision": None}
    summary = {"train": {}, "validation": {}, "diverged_at": None, **made_on, **summary}
    return Result(
        suite, "paper", "table_a1", row, seed, POINT, "covering", 10, 1.0, [], "c", summary
    )


def found(scores: dict[str, Any], held_out_by: float = 1.0, dead: int = 0) -> dict[str, Any]:
    """What one run's codes tell; in distribution as `scores`, held out a multiple of it."""
    held_out = {name: held_out_by * value for name, value in scores.items()}
    shape = {"mean": held_out} if "auc" in scores else held_out
    train_shape = {"mean": scores} if "auc" in scores else scores
    return {
        "step": 10,
        "decoding": {
            "in_distribution": dict.fromkeys(("0", "1", "all"), train_shape),
            "held_out": dict.fromkeys(("0", "1", "all"), shape),
        },
        "effective_rank": {"held_out": [2.0, 3.0]},
        "code_size": 8,
        "value_units": [{"units": 4, "dead": dead, "share": dead / 4}, None],
    }


def decoded(run: Result, scores: dict[str, Any], *more: Any, **choices: Any) -> Decoded:
    chosen = asdict(replace(Choices(), **choices))
    return Decoded(run.name, chosen, "python -m evals latent_codes runs/x", found(scores, *more))


def cells(lines: list[str], label: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_means_over_seeds_of_held_out_functions() -> None:
    runs = [result("hyla", 0), result("hyla", 1), result("softmax", 0)]
    first, second, other = runs
    told = [
        decoded(first, FUZZY_MEANS, 1.0, 1),
        decoded(second, FUZZY_MEANS, 1.1),
        decoded(other, FUZZY_MEANS, fixed="query"),
    ]
    (section,) = sections(runs)
    lines = latent_table.text(section, told)
    assert cells(lines, "HYLA") == [
        "HYLA",
        "fixed nothing",
        "63.00 ± 3.00",
        "31.50 ± 1.50",
        "0.00 ± 0.00",
        "21.00 ± 1.00",
        "63.00 ± 3.00, 63.00 ± 3.00",
        "60.00 ± 0.00",
        "2.50 ± 0.00 of 8",
        "12.50 ± 12.50",
        "2",
    ]
    assert cells(lines, "Softmax attention")[1:3] == ["fixed query", "60.00"]
    assert lines.count("python -m evals latent_codes runs/x") == 1


def test_rules_have_columns_of_their_own() -> None:
    run = result("hyla", 0, "sraven")
    (section,) = sections([run])
    lines = latent_table.text(section, [decoded(run, RULE_SCORES, site="row", order="identity")])
    assert cells(lines, "HYLA")[1:6] == ["row, order identity", "50.00", "20.00", "40.00", "4.00"]
    assert "majority's macro F1" in lines[4]


def test_runs_that_nobody_looked_at_have_no_table() -> None:
    (section,) = sections([result("hyla", 0)])
    assert latent_table.text(section, [decoded(result("hyla", 1), FUZZY_MEANS)]) == []


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were looked at."""
    seen: list[Path] = []

    def look_at(workdir: str, step: None, choices: Choices, tsne: int, out: Path) -> dict[str, Any]:
        seen.append(out)
        return found(FUZZY_MEANS)

    monkeypatch.setattr(latent_code, "look_at", look_at)
    return seen


def folder_of(home: Path, *runs: Result) -> Path:
    for run in runs:
        results.write(home / "results", run)
        (home / run.folder).mkdir(parents=True)
    return home


def test_each_run_is_looked_at_once_with_the_same_choices(
    tmp_path: Path, looks: list[Path]
) -> None:
    runs = [result("hyla", 0), result("hyla", 1), result("hyla", 2, diverged_at=3)]
    folder = folder_of(tmp_path, *runs)
    assert main(["latent_codes", str(folder), "--fixed=query"]) == 0
    assert looks == [folder / run.folder / "latent_codes" / "fixed_query" for run in runs[:2]]
    assert main(["latent_codes", str(folder), "--fixed=query"]) == 0
    assert len(looks) == 2
    assert main(["latent_codes", str(folder)]) == 0
    assert main(["latent_codes", str(folder), "--fixed=query", "--seed=1"]) == 0
    assert len(looks) == 6
    kept = [json.loads(path.read_text()) for path in (folder / "latent_codes").glob("*query.json")]
    assert [one["choices"]["seed"] for one in kept] == [1, 1]
    report = (folder / "report.md").read_text()
    assert report.count("| HYLA | fixed") == 2
    assert f"hyla-lm evals latent_codes {folder} --fixed=query --seed=1" in report


def test_runs_that_are_gone_are_told(
    tmp_path: Path, looks: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    results.write(tmp_path / "results", result("hyla", 0))
    with pytest.raises(UserError, match="need the checkpoints"):
        latent_table.look_at_all(tmp_path, Choices(), 10, "")
    assert main(["latent_codes", str(tmp_path)]) == 2
    assert "is gone" in capsys.readouterr().err and looks == []
