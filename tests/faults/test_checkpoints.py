"""A checkpoint that is not what was saved is named, and the run goes on from the one before."""

import gc
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.checkpoint.checksums import changes_since_save, sealed
from hyla_lm.cli.main import main
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.run.program import Program, make_program
from hyla_lm.tasks.protocol import Task
from tests.run_lines import measured

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
def gin_file(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import SEQUENCE_LENGTH, TINY

    path = tmp_path_factory.mktemp("damage") / "tiny.gin"
    path.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))
    return path


@pytest.fixture(scope="module")
def whole(gin_file: Path) -> Path:
    workdir = gin_file.parent / "whole"
    assert main(["train", f"--gin_file={gin_file}", f"--workdir={workdir}"]) == 0
    return workdir


@pytest.fixture(scope="module")
def program(gin_file: Path) -> Program[Task]:
    return make_program(read_experiment([str(gin_file)], []))


@pytest.fixture
def workdir(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


class Command:
    """hyla-lm on one run: its status, and the lines on stderr."""

    def __init__(self, gin_file: Path, workdir: Path, capsys: pytest.CaptureFixture[str]):
        self.train_arguments = [f"--gin_file={gin_file}"]
        self.workdir, self.capsys = workdir, capsys

    def __call__(self, command: str, *arguments: str) -> tuple[int, list[str]]:
        self.capsys.readouterr()
        more = self.train_arguments if command == "train" else []
        status = main([command, *more, f"--workdir={self.workdir}", *arguments])
        return status, self.capsys.readouterr().err.splitlines()


@pytest.fixture
def command(gin_file: Path, workdir: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(gin_file, workdir, capsys)


def contents(program: Program[Task], folder: Path, step: int) -> tuple[object, ...]:
    """Meta, data and the bytes of all arrays; raises UserError for a damaged checkpoint."""
    checkpoints = Checkpointer(epath.Path(folder), keep=None)
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
    """Of files that a restore reads in part, or not at all, it is told that they have changed."""
    folder, rng = workdir / "checkpoints", random.Random(0)
    saved = contents(program, folder, 12)
    files = sorted(path for path in (folder / "12").rglob("*") if path.is_file())
    assert len(files) > 10
    found: Counter[tuple[str, str]] = Counter()
    for index in range(flips):
        path = files[index % len(files)]
        before = flip(path, rng)
        try:
            is_equal = contents(program, folder, 12) == saved
            changed = changes_since_save(epath.Path(workdir), 12)
            is_told = changed == [path.relative_to(folder / "12").as_posix()]
            outcome = "told" if is_equal and is_told else "SILENT"
        except UserError as error:
            assert str(error).startswith(f"{folder / '12'} cannot be restored ("), error
            assert len(str(error)) < 500 and "\n" not in str(error)
            outcome = "named"
        found[path.relative_to(folder / "12").parts[0], outcome] += 1
        path.write_bytes(before)
    for (part, outcome), count in sorted(found.items()):
        print(f"{part:24} {outcome:8} {count}")
    assert not any(outcome == "SILENT" for _, outcome in found)
    assert {outcome for part, outcome in found if part in ("data", "meta")} >= {"named"}


def empty(step: Path) -> None:
    shutil.rmtree(step)
    step.mkdir()


def truncate(step: Path) -> None:
    for path in step.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_the_position(step: Path) -> None:
    (step / "data" / "metadata").write_text("{}")


def lose_the_meta(step: Path) -> None:
    shutil.rmtree(step / "meta")


def lose_the_arrays(step: Path) -> None:
    shutil.rmtree(step / "state" / "d")


def be_of_another_position(step: Path) -> None:
    path = step / "data" / "metadata"
    data = json.loads(path.read_text())
    data["streams"][0]["rows_read"] += 8
    path.write_text(json.dumps(data))


def take_old_arrays(step: Path) -> None:
    shutil.rmtree(step / "state")
    shutil.copytree(step.parent / "10" / "state", step / "state")


DAMAGES = [
    empty,
    truncate,
    lose_the_position,
    lose_the_meta,
    lose_the_arrays,
    be_of_another_position,
    take_old_arrays,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_named_and_nothing_is_moved(
    damage, command: Command, workdir: Path
) -> None:
    checkpoints = workdir / "checkpoints"
    damage(checkpoints / "12")
    status, lines = command("train")
    assert (status, len(lines)) == (2, 1), lines
    assert lines[0].startswith(f"hyla-lm: {checkpoints / '12'} cannot be restored (")
    assert lines[0].endswith(": use step 10, with --step=10.")
    assert {path.name for path in checkpoints.iterdir() if path.name.isdigit()} == {"5", "10", "12"}
    assert not (workdir / "set_aside").exists()


def test_a_run_goes_on_from_the_checkpoint_before_to_the_same_bits(
    command: Command, workdir: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    be_of_another_position(workdir / "checkpoints" / "12")
    assert command("train", "--step=10")[0] == 0
    assert "checkpoints 12 are moved to" in caplog.text
    assert [path.name for path in workdir.glob("set_aside/*/12")] == ["12"], "never deleted"
    assert measured(workdir) == measured(whole)
    inspected = ["inspect", str(workdir), f"--against={whole}"]
    assert main(inspected) == 0


@pytest.mark.parametrize("reading", [["evaluate"], ["sample", "--prompt=ba", "--max_tokens=2"]])
def test_reading_commands_name_a_damaged_checkpoint_and_take_the_one_before(
    reading: list[str], command: Command, workdir: Path
) -> None:
    lose_the_position(workdir / "checkpoints" / "12")
    status, lines = command(*reading)
    assert (status, len(lines)) == (2, 1), lines
    assert "--step=10" in lines[0]
    assert command(*reading, "--step=10")[0] == 0


def test_an_unreadable_checkpoint_is_named(
    command: Command, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    (workdir / "checkpoints" / "12" / "meta" / "metadata").chmod(0)
    status, lines = command("train")
    assert (status, len(lines)) == (2, 1), lines


def test_the_only_checkpoint_damaged_leaves_nothing_to_go_on_from(
    command: Command, workdir: Path
) -> None:
    for step in ("5", "10"):
        shutil.rmtree(workdir / "checkpoints" / step)
    lose_the_position(workdir / "checkpoints" / "12")
    status, lines = command("train")
    assert (status, len(lines)) == (2, 1), lines
    assert "no earlier one is left, so train again in another --workdir." in lines[0]


def test_all_checkpoints_gone_is_no_reason_to_begin_again(command: Command, workdir: Path) -> None:
    before = (workdir / "metrics.jsonl").read_bytes()
    for path in (workdir / "checkpoints").iterdir():
        shutil.rmtree(path)
    status, lines = command("train")
    assert (status, len(lines)) == (2, 1), lines
    assert "has saved step 12 but holds no checkpoint" in lines[0]
    assert (workdir / "metrics.jsonl").read_bytes() == before
    (workdir / ".saved").unlink()
    assert command("train")[0] == 0, "as after a kill before the first checkpoint"


def test_something_else_among_the_checkpoints_is_named(command: Command, workdir: Path) -> None:
    (workdir / "checkpoints" / "10.backup").mkdir()
    for reading in ("train", "evaluate"):
        status, lines = command(reading)
        assert (status, len(lines)) == (2, 1), lines
        assert "holds '10.backup', which is no checkpoint: move it elsewhere." in lines[0]


def test_a_step_that_is_not_saved_is_named(command: Command) -> None:
    status, lines = command("train", "--step=7")
    assert (status, len(lines)) == (2, 1)
    assert "has no checkpoint of step 7 (it has 5, 10, 12)." in lines[0]


def test_a_change_without_harm_is_told(
    command: Command, workdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(workdir / "checkpoints" / "12" / "state" / "_sharding", random.Random(0))
    for reading in ("train", "evaluate"):
        caplog.clear()
        assert command(reading)[0] == 0
        assert "12: state/_sharding changed since the save, but not what a restore" in caplog.text


def test_going_back_on_purpose_loses_nothing(command: Command, workdir: Path, whole: Path) -> None:
    before = (workdir / "metrics.jsonl").read_text()
    assert command("train", "--step=5", "--gin.OptimizerConfig.learning_rate=1e-3")[0] == 0
    (aside,) = workdir.glob("set_aside/*")
    assert sorted(path.name for path in aside.iterdir()) == [
        *("10", "12", "metrics.jsonl", "summary.json"),
    ]
    assert (aside / "metrics.jsonl").read_text() == before
    assert measured(workdir)[0] == measured(whole)[0]
    assert measured(workdir)[-1] != measured(whole)[-1]


def test_a_seal_is_broken_by_any_change(command: Command, workdir: Path) -> None:
    path = workdir / "checkpoints" / "12" / "meta" / "metadata"
    meta = json.loads(path.read_text())
    content = {name: value for name, value in meta.items() if name != "sha256"}
    assert sealed(content) == meta
    meta["checksums"]["state"]["step"] = "00000000"
    path.write_text(json.dumps(meta))
    status, lines = command("train")
    assert status == 2 and "its meta differs from its hash" in lines[0]
