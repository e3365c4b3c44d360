"""hyla-lm inspect tells what a checkpoint holds and how it differs from another."""

from pathlib import Path

import pytest

from hyla_lm.cli.main import main

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.fixture(scope="module")
def runs(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs "a" and "b", of two learning rates."""
    from tests.conftest import SEQUENCE_LENGTH, TINY

    home = tmp_path_factory.mktemp("inspect")
    gin_file = home / "tiny.gin"
    gin_file.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))
    for name, rate in (("a", "1e-2"), ("b", "1e-3")):
        arguments = [f"--gin_file={gin_file}", f"--workdir={home / name}"]
        more = [f"--gin.OptimizerConfig.learning_rate={rate}", "--gin.TrainConfig.steps=6"]
        assert main(["train", *arguments, *more]) == 0
    return home


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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "has no checkpoints: give the folder of a run."),
        (["a", "--step=4"], "has no checkpoint of step 4 (it has 5, 6)."),
        (["a", "--against=nowhere"], "has no checkpoints: give the folder of a run."),
    ],
)
def test_what_is_not_there_is_named(
    runs: Path,
    arguments: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(runs)
    status, lines = inspect(capsys, *arguments)
    assert (status, len(lines)) == (2, 1)
    assert named in lines[0]
