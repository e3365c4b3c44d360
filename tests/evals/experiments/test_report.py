"""Reports: means and standard errors over seeds, the point chosen for a row, and the text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.cli.main import main
from hyla_lm.evals.experiments import results
from hyla_lm.evals.experiments.results import Result

ROOT = Path(__file__).parents[3]
MADE_ON = {"device": "NVIDIA H200", "jax": "0.10.2", "git_revision": "0123456789abcdef"}


def fuzzy(row: str, seed: int, held_out: float | None, trained: float = 0.9, **more: Any) -> Result:
    """A run; without a metric it has diverged."""
    validation = {"held_out_r2": held_out, "in_distribution_r2": trained, "unknown_terms_r2": 0.1}
    summary = {
        "train": {"mse": 9.0 if held_out is None else 0.0125},
        "validation": {} if held_out is None else validation,
        "diverged_at": None if held_out is not None else 300,
        **MADE_ON,
    }
    settings: dict[str, Any] = {
        "preset": "paper",
        "experiment": "table_a1",
        "point": {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 100},
        "split": "published",
        "steps": 50000,
        "share": 1.0,
        "bindings": [],
        "command": "hyla-lm evals fuzzy_logic --workdir=runs/table",
    }
    return Result("fuzzy_logic", row=row, seed=seed, summary=summary, **{**settings, **more})


def report_of(folder: Path, *runs: Result) -> str:
    for run in runs:
        results.write(folder / "results", run)
    assert main(["evals", "report", str(folder)]) == 0
    return (folder / "report.md").read_text()


def line_of(text: str, label: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_mean_and_standard_error_beside_the_published(tmp_path: Path) -> None:
    """Of 60, 62 and 70 the mean is 64 and the error sqrt(28 / 3) = 3.055."""
    values = (0.60, 0.62, 0.70)
    text = report_of(tmp_path, *(fuzzy("softmax", seed, v) for seed, v in enumerate(values)))
    assert line_of(text, "Softmax attention") == [
        "Softmax attention",
        "64.00 ± 3.06",
        "63.28 ± 2.31",
        "+0.72",
        "3",
        "90.00 ± 0.00",
        "10.00 ± 0.00",
        "0.0125 ± 0.0000",
    ]
    assert "\nhyla-lm evals fuzzy_logic --workdir=runs/table\n" in text


def test_one_seed_has_no_error_and_a_diverged_one_no_metric(tmp_path: Path) -> None:
    text = report_of(
        tmp_path,
        *(fuzzy("softmax", 0, 0.6), fuzzy("hyla", 0, 0.8), fuzzy("hyla", 1, None)),
        fuzzy("linear", 0, None),
    )
    assert line_of(text, "Softmax attention")[1] == "60.00"
    cells = line_of(text, "HYLA")
    assert (cells[1], cells[4], cells[-1]) == ("80.00", "1 of 2, others diverged", "0.0125")
    all_diverged = ["–", "59.89 ± 5.22", "–", "0 of 1, others diverged"]
    assert line_of(text, "Linear attention")[1:5] == all_diverged


def test_the_point_is_chosen_in_distribution_and_the_best_held_out_is_shown_too(
    tmp_path: Path,
) -> None:
    low = {"learning_rate": 1e-3, "weight_decay": 0.03, "warmup_steps": 100}
    high = {"learning_rate": 3e-3, "weight_decay": 0.1, "warmup_steps": 100}
    text = report_of(
        tmp_path,
        *(fuzzy("hyla", seed, 0.8, trained=0.90, point=low) for seed in (0, 1)),
        *(fuzzy("hyla", seed, 0.7, trained=0.95, point=high) for seed in (0, 1)),
    )
    chosen, best = text.split("Each row at its point with the best mean held out figure")
    assert line_of(chosen, "HYLA")[1] == "70.00 ± 0.00"
    assert line_of(chosen, "HYLA")[-1] == "`lr0.003_wd0.1_warmup100`"
    assert line_of(best, "HYLA")[1] == "80.00 ± 0.00"
    assert "the best mean in distribution figure" in chosen


def test_no_ceiling_is_told_of_other_instances(tmp_path: Path) -> None:
    run = results.read(ROOT / "docs" / "results" / "sraven_7812_steps" / "results")[0]
    assert "best possible" in report_of(tmp_path / "same", run)
    other = replace(run, bindings=["Sraven.num_symbols=6"])
    assert "best possible" not in report_of(tmp_path / "other", other)


def test_a_folder_with_other_results_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evals", "report", str(tmp_path)]
    results.write(tmp_path / "results", fuzzy("softmax", 0, 0.5))
    (tmp_path / "results" / "a.json").write_text('{"suite": "sraven"}')
    assert main(command) == 2
    assert "a.json is not the result of a known run" in capsys.readouterr().err


RESULTS = sorted(
    path.parent
    for path in (ROOT / "docs" / "results").glob("*/results")
    if path.parent.name != "interventions"  # tests/evals/interventions has its report
)


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_the_committed_reports_are_those_of_the_committed_results(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("results", "latent_codes"):
        (tmp_path / name).symlink_to(folder / name)
    assert main(["evals", "report", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == (folder / "report.md").read_text()
