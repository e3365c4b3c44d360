"""hyla-lm compare: what it finds of trained runs, and the files that it leaves."""

import json
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.fixture(scope="module")
def runs(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A run, and one that hardly learns."""
    home = tmp_path_factory.mktemp("runs")
    gin_file = write_gin(home, tiny_rows, 'ModelConfig.attention = "softmax"')
    for name, rate in (("good", "1e-2"), ("worse", "1e-4")):
        assert train(gin_file, home / name, f"OptimizerConfig.learning_rate={rate}") == 0
    return {name: str(home / name) for name in ("good", "worse")}


def test_the_command_prints_and_leaves_a_picture_and_the_figures(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "comparison"
    assert main(["compare", runs["good"], runs["worse"], f"--output={folder}"]) == 0
    out = capsys.readouterr().out
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((folder / "comparison.json").read_text())
    [pair] = found["pairs"]
    assert pair["over_documents"]["high"] < 0 and pair["over_seeds"] is None
    assert pair["verdict"].startswith("learning_rate=0.01 is better by 0.")
    assert pair["verdict"] in out and "one seed" in out and f"{pair['difference']:+.4f}" in out
    summaries = [json.loads(Path(path, "summary.json").read_text()) for path in runs.values()]
    expected = [summary["validation"]["bits_per_byte"] for summary in summaries]
    assert [g["bits_per_byte"] for g in found["groups"]] == pytest.approx(expected, rel=1e-6)
    assert pair["difference"] == pytest.approx(expected[0] - expected[1], rel=1e-5)
