"""What decides the last bits is saved with a checkpoint; a run that resumes with others says so."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests import preloaded
from tests.tiny_runs import arguments, train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

SAID = "since step 10 this changed, so the last bits may differ: "


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gin(tmp_path_factory.mktemp("numerics"), tiny_rows)


@pytest.fixture(scope="module")
def left_at_step_10(gin_file: Path) -> Path:
    """A run whose newest checkpoint is of step 10, as after a kill."""
    workdir = gin_file.with_name("left")
    assert train(gin_file, workdir) == 0
    shutil.rmtree(workdir / "checkpoints" / "12")
    (workdir / "summary.json").unlink()
    return workdir


@pytest.fixture
def workdir(left_at_step_10: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(left_at_step_10, tmp_path / "run"))


def train_elsewhere(
    gin_file: Path, workdir: Path, *more: str, **environment: str
) -> tuple[int, str]:
    """Status and all output of another process, with other variables of the environment."""
    command = [sys.executable, "-m", "hyla_lm", *arguments(gin_file, workdir, *more)]
    done = preloaded.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def test_the_same_command_resumes_in_silence(gin_file: Path, workdir: Path, tmp_path: Path) -> None:
    another = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "another")}
    status, said = train_elsewhere(gin_file, workdir, **another)
    assert status == 0, said
    assert "from the checkpoint of step 10" in said and SAID not in said


def test_other_flags_are_reported(gin_file: Path, workdir: Path) -> None:
    another = "--xla_cpu_enable_fast_math=false"
    flag = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {another}"}
    status, said = train_elsewhere(gin_file, workdir, **flag)
    assert status == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith(SAID)]
    assert "XLA_FLAGS " in line and another in line and "jaxlib" not in line
