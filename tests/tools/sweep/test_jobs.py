"""A launcher job for each run, which the launcher itself accepts."""

import shlex
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.tpu import launch
from hyla_lm.tpu.job import NAME

JOB = """
# a comment
--name=hyla-50m-with-a-long-name
--project=p
--zone=us-west4-a
--spot
--repository=https://example.com/hyla_lm.git
--revision=0123456789abcdef0123456789abcdef01234567
--gin_file=gin/c4_50m_hyla.gin
--gin_file=gin/c4_rows.gin
--gin.Rows.train=gs://b/rows of text/train
--gin.Rows.validation=gs://b/rows/validation
--gin.Rows.tokenizer=gs://b/tokenizer.model
--workdir=gs://b/runs/one
"""
SWEEP = (
    *("sweep", "--workdir=gs://b/sweep", "--seeds=2"),
    *("--over", "OptimizerConfig.learning_rate=1e-3,3e-3"),
    *("--over", "ModelConfig.attention=hyla,('hyla','softmax')", "--gin.TrainConfig.steps=5000"),
)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.args"
    path.write_text(JOB)
    return path


def test_every_run_is_a_job_that_the_launcher_would_start(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "jobs"
    assert main([*SWEEP, f"--job={job_file}", f"--emit_jobs={folder}"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert len(commands) == len(list(folder.iterdir())) == 8
    jobs = [launch.read_job(shlex.split(command)[2:]) for command in commands]
    job = jobs[2]
    assert job.capacity == "spot" and job.project == "p"
    assert job.training.workdir == "gs://b/sweep/learning_rate=0.001,attention=hyla+softmax/seed=0"
    assert job.training.gin_files == ("gin/c4_50m_hyla.gin", "gin/c4_rows.gin")
    assert job.training.bindings == (
        *("Rows.train=gs://b/rows of text/train", "Rows.validation=gs://b/rows/validation"),
        *("Rows.tokenizer=gs://b/tokenizer.model", "TrainConfig.steps=5000"),
        *("OptimizerConfig.learning_rate=1e-3", "ModelConfig.attention=('hyla','softmax')"),
        "TrainConfig.seed=0",
    )
    names = {one.name for one in jobs}
    assert len(names) == 8 and all(NAME.fullmatch(name) for name in names)
    assert all(name.startswith("hyla-50m-with-a-long-name") for name in names)
    assert len({one.training.workdir for one in jobs}) == 8
    assert jobs[0].name == "hyla-50m-with-a-long-name-le-4819d3dc-s0", "the same in a larger sweep"


def test_a_job_that_the_launcher_refuses_writes_nothing(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_file.write_text(JOB.replace("--revision", "#--revision"))
    assert main([*SWEEP, f"--job={job_file}", f"--emit_jobs={tmp_path / 'jobs'}"]) == 2
    assert "--revision= must be a whole commit" in capsys.readouterr().err
    assert not (tmp_path / "jobs").exists()
