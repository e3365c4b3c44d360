"""Reports: means and standard errors over seeds, the point chosen for a row, and the text."""

import re
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.cli.main import main
from hyla_lm.evals.experiments import results
from hyla_lm.evals.experiments.benchmarks import TABLE_A1
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


def sraven(bindings: list[str]) -> Result:
    validation = {"held_out_accuracy": 0.7, "in_distribution_accuracy": 0.8}
    summary = {"train": {"loss_nats": 0.5}, "validation": validation, **MADE_ON}
    place = ("sraven", "strict", "table_a1", "hyla")
    point = {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 1000}
    return Result(*place, 0, point, "covering", 156250, 1.0, bindings, "c", summary)


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


def test_schedules_and_settings_are_never_mixed(tmp_path: Path) -> None:
    short = {"steps": 2500, "share": 0.05}
    text = report_of(
        tmp_path,
        fuzzy("softmax", 0, 0.6),
        fuzzy("hyla", 0, 0.7, **short),
        fuzzy("linear", 0, 0.5, bindings=["ModelConfig.mlp_dim=64"]),
        fuzzy("linear", 1, 0.5, preset="strict"),
    )
    assert text.count("## Fuzzy logic: Table A1") == 4
    assert "2,500 steps a run, **5 %** of the schedule" in text
    assert "**Changed**: `ModelConfig.mlp_dim=64`" in text
    assert len(list(tmp_path.glob("*.png"))) == 4


def test_the_ceiling_is_that_of_the_instances(tmp_path: Path) -> None:
    for binding, is_known in (("Sraven.num_symbols=6", False), ("Sraven.split='published'", True)):
        text = report_of(tmp_path / binding, sraven(bindings=[binding]))
        assert ("best possible" in text) == is_known
        assert (line_of(text, "HYLA")[-1] == "93.31 ± 0.26") == is_known


def test_a_folder_without_results_or_with_others_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evals", "report", str(tmp_path)]
    assert main(command) == 2
    assert "has no results" in capsys.readouterr().err
    results.write(tmp_path / "results", fuzzy("softmax", 0, 0.5))
    (tmp_path / "results" / "a.json").write_text('{"suite": "sraven"}')
    assert main(command) == 2
    assert "a.json is not the result of a known run" in capsys.readouterr().err


MEAN_AND_ERROR = re.compile(r"(-?\d+\.\d+) ± (\d+\.\d+)")
DOCUMENTS = ("docs/paper_tables.md", "evals/README.md", "docs/reproduction.md")
RESULTS = sorted(
    path.parent
    for path in (ROOT / "docs" / "results").glob("*/results")
    if path.parent.name != "interventions"  # tests/evals/interventions has its report
)


PUBLISHED = {
    f"{mean:.2f} ± {error:.2f}" for _, *published in TABLE_A1.values() for mean, error in published
}


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_the_committed_reports_are_those_of_the_committed_results(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("results", "latent_codes"):
        (tmp_path / name).symlink_to(folder / name)
    assert main(["evals", "report", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == (folder / "report.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_means_in_documents_are_those_of_committed_reports(document: str) -> None:
    """To one or two digits. Those below one are ambiguity's, which has a file of its own."""
    reports = "".join((folder / "report.md").read_text() for folder in RESULTS)
    measured = {
        f"{float(mean):.{digits}f} ± {float(error):.{digits}f}"
        for mean, error in MEAN_AND_ERROR.findall(reports)
        for digits in (1, 2)
    }
    told = MEAN_AND_ERROR.findall((ROOT / document).read_text())
    of_runs = {f"{mean} ± {error}" for mean, error in told if abs(float(mean)) >= 1}
    assert of_runs
    assert of_runs <= measured | PUBLISHED
