"""Folders with another run, with other rows, or with a run of another version."""

import json
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.bad_input.conftest import Reject, bound_to

pytestmark = pytest.mark.usefixtures("programs_once")


def test_another_run_does_not_resume_in_the_workdir(reject: Reject, trained: Path) -> None:
    before = (trained / "metrics.jsonl").read_text()
    for binding, named in {
        "ModelConfig.mlp_dim = 16": "ModelConfig.mlp_dim = 8",
        "TrainConfig.seed = 1": "TrainConfig.seed = 0",
    }.items():
        more = ["--gin.TrainConfig.steps = 4", f"--gin.{binding}"]
        line = reject("train", f"--gin_file={trained}/config.gin", f"--workdir={trained}", *more)
        assert named in line and str(trained) in line, line
    assert (trained / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_run_is_not_read_with_other_rows(
    reject: Reject, trained: Path, damaged: Rows, command: str
) -> None:
    manifest = Path(damaged.train, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "source": "elsewhere"}))
    bindings = [f"--gin.{binding}" for binding in bound_to(damaged)]
    run = [f"--gin_file={trained}/config.gin", f"--workdir={trained}"]
    line = reject(command, *run, *bindings)
    assert "train rows" in line and str(trained) in line


def test_a_run_of_another_version_is_named(reject: Reject, trained: Path, tmp_path: Path) -> None:
    own = (trained / "config.gin").read_bytes()
    for text in (b"import hyla_lm.evals.gone\n" + own, own + b"\xff"):
        (tmp_path / "config.gin").write_bytes(text)
        line = reject("evaluate", f"--workdir={tmp_path}")
        assert f"{tmp_path}/config.gin:" in line
