"""hyla-lm inspect shows what a checkpoint holds."""

from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.input.prepared import Rows
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")


def test_a_checkpoint_is_described(
    tiny_rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gin_file = write_gin(tmp_path, tiny_rows, "TrainConfig.steps = 6")
    assert train(gin_file, tmp_path / "run") == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("checkpoints of steps 5, 6")
    assert lines[1].startswith("step 6: ")
    assert lines[1].endswith("arrays, data and meta equal their checksums")
    assert lines[2] == "all numbers are finite"
    assert "jaxlib " in lines[3]
    assert "device cpu" in lines[4]
    assert lines[5] == 'data position: [{"rows_read": 48}]'
    table = {line.split()[0]: line.split()[1:] for line in lines[6:]}
    assert table["params/embed/table"] == ["float32", "320", "x", "16", "0.020", "MB"]
    assert table["step"] == ["int32", "scalar", "0.000", "MB"]
    assert main(["inspect", str(tmp_path / "run"), "--step=5"]) == 0
    assert "\nstep 5: " in capsys.readouterr().out
