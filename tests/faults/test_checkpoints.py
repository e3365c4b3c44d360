"""A checkpoint that is not what was saved is named, and the run resumes from the one before."""

import gc
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.checkpoint.checksums import sealed
from hyla_lm.cli.main import main
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.run.program import Program, make_program
from hyla_lm.tasks.protocol import Task
from tests.faults.runs import differences
from tests.run_lines import measured
from tests.tiny_runs import saved_steps, train, write_gin

# Orbax and TensorStore leave coroutines and callbacks behind when a restore fails.
LOOSE_ENDS_SECONDS = 0.5
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("programs_once"),
]


@pytest.fixture(autouse=True)
def loose_ends() -> Iterator[None]:
    """What a restore leaves behind goes with the test that failed it, and not with a later one."""
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def last_loose_ends() -> Iterator[None]:
    yield
    time.sleep(LOOSE_ENDS_SECONDS)
    gc.collect()


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gin(tmp_path_factory.mktemp("damage"), tiny_rows)


@pytest.fixture(scope="module")
def whole(gin_file: Path) -> Path:
    assert train(gin_file, gin_file.parent / "whole") == 0
    return gin_file.parent / "whole"


@pytest.fixture(scope="module")
def program(gin_file: Path) -> Program[Task]:
    return make_program(read_experiment([str(gin_file)], []))


@pytest.fixture
def workdir(whole: Path, tmp_path: Path) -> Path:
    """A run with checkpoints of steps 5, 10 and 12, killed before it wrote its summary."""
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    (copy / "summary.json").unlink()
    return copy


Command = Callable[..., str]


@pytest.fixture
def refused(gin_file: Path, workdir: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command on the run that must be refused; returns its line on stderr."""

    def run(command: str, *arguments: str) -> str:
        capsys.readouterr()
        gin = [f"--gin_file={gin_file}"] if command == "train" else []
        status = main([command, *gin, f"--workdir={workdir}", *arguments])
        lines = capsys.readouterr().err.splitlines()
        assert (status, len(lines)) == (2, 1), lines
        return lines[0]

    return run


def contents(program: Program[Task], folder: Path, step: int) -> tuple[object, ...]:
    """Meta, data and the bytes of all arrays; raises UserError for a damaged checkpoint."""
    checkpoints = Checkpointer(epath.Path(folder))
    meta = checkpoints.meta(step)
    state, data = checkpoints.restore(step, program.abstract_state, meta)
    return meta, data, [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def flip(path: Path, rng: random.Random) -> bytes:
    """Flips one bit of a file; returns what it held."""
    before = path.read_bytes()
    changed, bit = bytearray(before), rng.randrange(8 * len(before))
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    return before


@pytest.mark.parametrize("flips", [40, pytest.param(500, marks=pytest.mark.faults)])
def test_a_flipped_bit_is_named_and_where_it_does_harm_refused(
    flips: int, program: Program[Task], workdir: Path
) -> None:
    """Files that a restore reads in part, or not at all, may change."""
    folder, rng = workdir / "checkpoints", random.Random(0)
    saved = contents(program, folder, 12)
    files = sorted(path for path in (folder / "12").rglob("*") if path.is_file())
    assert len(files) > 10
    outcomes: Counter[tuple[str, str]] = Counter()
    for index in range(flips):
        path = files[index % len(files)]
        before = flip(path, rng)
        try:
            outcome = "equal" if contents(program, folder, 12) == saved else "SILENT"
        except UserError as error:
            assert str(error).startswith(f"{folder / '12'} cannot be restored ("), error
            assert len(str(error)) < 500 and "\n" not in str(error)
            outcome = "refused"
        outcomes[path.relative_to(folder / "12").parts[0], outcome] += 1
        path.write_bytes(before)
    for (part, outcome), count in sorted(outcomes.items()):
        print(f"{part:24} {outcome:8} {count}")
    assert not any(outcome == "SILENT" for _, outcome in outcomes)
    assert {outcome for part, outcome in outcomes if part in ("data", "meta")} >= {"refused"}


def truncate(step: Path) -> None:
    for path in step.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_the_position(step: Path) -> None:
    (step / "data" / "metadata").write_text("{}")


def be_of_another_position(step: Path) -> None:
    path = step / "data" / "metadata"
    data = json.loads(path.read_text())
    data["streams"][0]["rows_read"] += 8
    path.write_text(json.dumps(data))


def take_old_arrays(step: Path) -> None:
    shutil.rmtree(step / "state")
    shutil.copytree(step.parent / "10" / "state", step / "state")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        lose_the_position,
        be_of_another_position,
        take_old_arrays,
    ],
)
def test_a_damaged_newest_checkpoint_is_named_and_nothing_is_moved(
    damage: Callable[[Path], None], refused: Command, workdir: Path
) -> None:
    damage(workdir / "checkpoints" / "12")
    line = refused("train")
    assert line.startswith(f"hyla-lm: {workdir / 'checkpoints' / '12'} cannot be restored (")
    assert line.endswith(": take step 10, or move it elsewhere.")
    assert saved_steps(workdir) == [5, 10, 12] and not (workdir / "set_aside").exists()


def test_a_run_resumes_from_the_checkpoint_before_to_the_same_bits(
    gin_file: Path, workdir: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    be_of_another_position(workdir / "checkpoints" / "12")
    assert train(gin_file, workdir, "--step=10") == 0
    assert "checkpoints 12 are moved to" in caplog.text
    (moved_to,) = workdir.glob("set_aside/*")
    assert sorted(path.name for path in moved_to.iterdir()) == ["12", "metrics.jsonl"]
    assert measured(workdir) == measured(whole)
    assert differences(workdir, whole, 12) == []


def test_reading_commands_name_a_damaged_checkpoint_and_take_the_one_before(
    refused: Command, workdir: Path
) -> None:
    lose_the_position(workdir / "checkpoints" / "12")
    assert "take step 10" in refused("evaluate")
    assert main(["evaluate", f"--workdir={workdir}", "--step=10"]) == 0


def test_all_checkpoints_gone_is_no_reason_to_begin_again(
    refused: Command, gin_file: Path, workdir: Path
) -> None:
    before = (workdir / "metrics.jsonl").read_bytes()
    for path in (workdir / "checkpoints").iterdir():
        shutil.rmtree(path)
    assert "has saved step 12 but holds no checkpoint" in refused("train")
    assert (workdir / "metrics.jsonl").read_bytes() == before
    (workdir / ".saved").unlink()
    assert train(gin_file, workdir) == 0, "as after a kill before the first checkpoint"


def test_a_seal_is_broken_by_any_change(refused: Command, workdir: Path) -> None:
    path = workdir / "checkpoints" / "12" / "meta" / "metadata"
    meta = json.loads(path.read_text())
    assert sealed({name: value for name, value in meta.items() if name != "sha256"}) == meta
    meta["checksums"]["state"]["step"] = "00000000"
    path.write_text(json.dumps(meta))
    assert "its meta differs from its hash" in refused("train")
