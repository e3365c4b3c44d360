"""What decides the last bits is saved with a checkpoint; a run that resumes with others says so."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from hyla_lm.run import program
from tests import preloaded
from tests.tiny_runs import arguments, train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

SAID = "other numerics than those of step 10, so maybe other bits: "


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


@pytest.mark.parametrize("is_compiled_before", [True, False])
def test_the_same_command_resumes_in_silence(
    is_compiled_before: bool, gin_file: Path, workdir: Path, tmp_path: Path
) -> None:
    more = {} if is_compiled_before else {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "another")}
    status, said = train_elsewhere(gin_file, workdir, "--strict_numerics", **more)
    assert status == 0, said
    assert "from the checkpoint of step 10" in said and "other numerics" not in said


def test_other_flags_are_reported_and_refused_on_request(gin_file: Path, workdir: Path) -> None:
    """Of several flags those that changed."""
    another = "--xla_cpu_enable_fast_math=false"
    flag = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {another}"}
    change = f"XLA_FLAGS nothing became {another}"
    status, said = train_elsewhere(gin_file, workdir, "--strict_numerics", **flag)
    assert status == 2 and change in said
    assert said.splitlines()[-1].startswith("hyla-lm: --strict_numerics: since the checkpoint of")
    status, said = train_elsewhere(gin_file, workdir, **flag)
    assert status == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith(SAID)]
    assert change in line
    longer = "TrainConfig.steps = 15"
    status, said = train_elsewhere(gin_file, workdir, longer, **flag)
    assert status == 0 and "XLA_FLAGS" not in said, "the newest checkpoint was made with the flag"


def test_another_schedule_is_another_compiled_step(
    gin_file: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(gin_file, workdir, "TrainConfig.steps = 15") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(SAID)]
    assert "compiled_step " in line and "XLA_FLAGS" not in line


def test_other_versions_are_reported(
    gin_file: Path,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed = program._version
    monkeypatch.setattr(program, "_version", lambda p: "0.0.1" if p == "jaxlib" else installed(p))
    change = f"jaxlib {installed('jaxlib')} became 0.0.1"
    capsys.readouterr()
    assert train(gin_file, workdir, "--strict_numerics") == 2
    assert change in capsys.readouterr().err
    assert train(gin_file, workdir) == 0
    assert change in capsys.readouterr().out
