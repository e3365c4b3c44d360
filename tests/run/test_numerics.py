"""What decides the last bits is saved with a checkpoint; a run that resumes with others says so."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.run import program, store
from tests import preloaded

pytestmark = pytest.mark.usefixtures("programs_once")

SAID = "other numerics than those of step 12, so maybe other bits: "
LONGER = "--gin.TrainConfig.steps=15"


@pytest.fixture(scope="module")
def gin_file(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import SEQUENCE_LENGTH, TINY

    path = tmp_path_factory.mktemp("numerics") / "tiny.gin"
    path.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))
    return path


@pytest.fixture
def workdir(gin_file: Path, tmp_path: Path) -> Path:
    assert main(["train", f"--gin_file={gin_file}", f"--workdir={tmp_path / 'run'}"]) == 0
    return tmp_path / "run"


def train(gin_file: Path, workdir: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Status and all output of a process of its own, with other variables of the environment."""
    command = [sys.executable, "-m", "hyla_lm", "train"]
    command += [f"--gin_file={gin_file}", f"--workdir={workdir}", *arguments]
    done = preloaded.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def stopped_early(gin_file: Path, workdir: Path) -> None:
    """Leaves the checkpoint of step 10 as the newest, as after a kill."""
    assert main(["train", f"--gin_file={gin_file}", f"--workdir={workdir}"]) == 0
    shutil.rmtree(workdir / "checkpoints" / "12")
    (workdir / "summary.json").unlink()


def test_the_same_command_resumes_in_silence(gin_file: Path, tmp_path: Path) -> None:
    """Also in another process, with and without programs that JAX has compiled before."""
    for cache in ("", str(tmp_path / "another")):
        stopped_early(gin_file, tmp_path / f"run{bool(cache)}")
        more = {"JAX_COMPILATION_CACHE_DIR": cache} if cache else {}
        status, said = train(gin_file, tmp_path / f"run{bool(cache)}", "--strict_numerics", **more)
        assert status == 0, said
        assert "from the checkpoint of step 10" in said and "other numerics" not in said


def test_other_flags_are_reported_and_refused_on_request(gin_file: Path, workdir: Path) -> None:
    """Of several flags those that changed."""
    another = "--xla_cpu_enable_fast_math=false"
    flag = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {another}"}
    change = f"XLA_FLAGS nothing became {another}"
    status, said = train(gin_file, workdir, LONGER, "--strict_numerics", **flag)
    assert status == 2
    assert change in said
    assert said.splitlines()[-1].startswith("hyla-lm: --strict_numerics: since the checkpoint of")
    status, said = train(gin_file, workdir, LONGER, **flag)
    assert status == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith(SAID)]
    assert change in line
    status, said = train(gin_file, workdir, LONGER, **flag)
    assert status == 0 and SAID[:14] not in said, "the newest checkpoint was made with the flag"


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("--a=1 --b=2", "--a=1 --b=3 --c", "--b=2 became --b=3 --c"),
        ("--a=1 --b=2", "--b=2", "--a=1 became nothing"),
        ("", "8", "nothing became 8"),
        ("0.0 0.1", "0.1 0.0", "0.0 0.1 became 0.1 0.0"),
    ],
)
def test_a_change_is_reported_without_what_stayed(before: str, after: str, change: str) -> None:
    assert store._change(before, after) == change


def test_another_schedule_is_another_compiled_step(
    gin_file: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--gin_file={gin_file}", f"--workdir={workdir}", LONGER]
    capsys.readouterr()
    assert main(["train", *arguments]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(SAID)]
    assert "compiled_step " in line and "XLA_FLAGS" not in line


def test_other_versions_are_reported(
    gin_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped_early(gin_file, tmp_path / "run")
    installed = program._version
    monkeypatch.setattr(program, "_version", lambda p: "9.9.9" if p == "jax" else installed(p))
    arguments = [f"--gin_file={gin_file}", f"--workdir={tmp_path / 'run'}"]
    capsys.readouterr()
    assert main(["train", *arguments, "--strict_numerics"]) == 2
    assert f"jax {installed('jax')} became 9.9.9" in capsys.readouterr().err
    assert main(["train", *arguments]) == 0
    assert f"jax {installed('jax')} became 9.9.9" in capsys.readouterr().out
