"""A run killed with SIGKILL and started again equals one never stopped, to the last bit."""

import signal
from pathlib import Path

import pytest

from hyla_lm.ending import STOPPED
from tests.conftest import sentences
from tests.data.c4_layouts import write_json_gz
from tests.faults.runs import differences
from tests.tiny_runs import saved_steps, train_process, write_gin

STEPS = 12
STREAM = """
include "{folder}/rows.gin"
LanguageModel.data = @C4Stream()
C4Stream.train = ("{folder}/c4-train.*",)
C4Stream.validation = ("{folder}/c4-validation.*",)
C4Stream.tokenizer = "{tokenizer}"
"""
# Rows and a stream differ in what they save of the data; how a run is killed is the same for both.
CASES = [("rows", "training"), ("rows", "saving"), ("stream", "training")]


@pytest.fixture
def data(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def gin_file(data: str, tiny_rows, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    path = write_gin(home, tiny_rows)
    if data == "stream":
        write_json_gz([sentences(seed, 1 + seed % 9) for seed in range(50)], home, "train", 3)
        write_json_gz([sentences(seed, 3) for seed in range(90, 100)], home, "validation", 1)
        path.rename(home / "rows.gin")
        path.write_text(STREAM.format(folder=home, tokenizer=tiny_rows.tokenizer))
    return path


@pytest.fixture(scope="module")
def never_stopped() -> dict[str, Path]:
    return {}


@pytest.fixture
def uninterrupted(
    data: str,
    gin_file: Path,
    never_stopped: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run on each kind of data, trained once for all tests."""
    if data not in never_stopped:
        workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
        assert train_process(gin_file, workdir) == 0
        never_stopped[data] = workdir
    return never_stopped[data]


@pytest.mark.parametrize(("data", "where"), CASES, indirect=["data"])
def test_a_killed_run_ends_like_one_never_stopped(
    where: str, gin_file: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    assert train_process(gin_file, workdir, where) == -signal.SIGKILL
    assert train_process(gin_file, workdir) == 0
    assert differences(workdir, uninterrupted, STEPS) == []


@pytest.mark.parametrize("where", ["opening", "training"])
@pytest.mark.parametrize("data", ["rows"], indirect=True)
def test_a_run_asked_to_stop_saves_and_goes_on(
    where: str, gin_file: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    assert train_process(gin_file, workdir, where, signal.SIGTERM) == STOPPED
    assert saved_steps(workdir) and not (workdir / "summary.json").exists()
    assert train_process(gin_file, workdir) == 0
    assert differences(workdir, uninterrupted, STEPS) == []
