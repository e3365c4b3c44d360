"""hyla-lm inspect shows what a checkpoint holds and how it differs from another."""

from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.input.prepared import Rows
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.fixture(scope="module")
def runs(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs "a" and "b", of two learning rates."""
    gin_file = write_gin(tmp_path_factory.mktemp("inspect"), tiny_rows, "TrainConfig.steps = 6")
    for name, rate in (("a", "1e-2"), ("b", "1e-3")):
        assert train(gin_file, gin_file.parent / name, f"OptimizerConfig.learning_rate={rate}") == 0
    return gin_file.parent


def inspect(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    capsys.readouterr()
    status = main(["inspect", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, (out or err).splitlines()


def test_a_checkpoint_is_described(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = inspect(capsys, runs / "a")
    assert status == 0
    assert lines[0].endswith("checkpoints of steps 5, 6")
    assert lines[1].startswith("step 6: ")
    assert lines[1].endswith("arrays, data and meta equal their checksums")
    assert lines[2] == "all numbers are finite"
    assert "jaxlib " in lines[3]
    assert "device_kind cpu" in lines[4] and "compiled_step " in lines[4]
    assert lines[5] == 'data position: [{"rows_read": 48}]'
    table = {line.split()[0]: line.split()[1:] for line in lines[6:]}
    assert table["params/embed/table"] == ["float32", "320", "x", "16", "0.020", "MB"]
    assert table["step"] == ["int32", "scalar", "0.000", "MB"]
    assert inspect(capsys, runs / "a", "--step=5")[1][1].startswith("step 5: ")


def test_two_runs_are_compared(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = inspect(capsys, runs / "a", f"--against={runs / 'a'}")
    assert (status, len(lines)) == (0, 1)
    assert lines[0].endswith("are equal to the last bit")
    status, lines = inspect(capsys, runs / "a", f"--against={runs / 'b'}")
    assert status == 1
    assert any(line.startswith("numerics compiled_step: ") for line in lines)
    differing = [line for line in lines if line.startswith("params/embed/table: ")]
    assert len(differing) == 1 and "of 5,120 numbers differ, by up to " in differing[0]
    assert not any(line.startswith("step: ") for line in lines), "both are of step 6"
