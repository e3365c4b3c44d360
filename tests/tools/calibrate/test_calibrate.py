"""hyla-lm calibrate on the CPU: what it measures and writes, and what it says of a bad kernel."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from hyla_lm.attention.attend import KERNELS
from hyla_lm.cli import main as cli
from hyla_lm.tools.calibrate import kernels
from hyla_lm.tools.calibrate.kernels import Check, check_kernels
from hyla_lm.tools.calibrate.timing import Budget, timed, timing_of
from tests import preloaded
from tests.model.small_model import small

ROOT = Path(__file__).parents[3]
GIN = """
TrainConfig.task = @LanguageModel()
TrainConfig.batch_size = 4
LanguageModel.vocab_size = 32
LanguageModel.sequence_length = 8
LanguageModel.logit_chunk = 8
ModelConfig.num_layers = 1
ModelConfig.model_dim = 16
ModelConfig.num_heads = 2
ModelConfig.head_dim = 8
ModelConfig.mlp_dim = 32
ModelConfig.dtype = "float32"
OptimizerConfig.warmup_steps = 1
"""
PARTS = ["embedding", "attention hyla, forward", "attention hyla", "feed-forward"]
PARTS += ["logits and loss", "optimizer"]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of two CPU devices."""
    folder = tmp_path_factory.mktemp("calibrate")
    (folder / "model.gin").write_text(GIN)
    command = [sys.executable, "-m", "hyla_lm", "calibrate", f"--gin_file={folder}/model.gin"]
    command += [f"--output={folder}/chip.json", "--repeats=3"]
    environment = os.environ | {
        **{"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        "JAX_NUM_CPU_DEVICES": "2",
    }
    done = preloaded.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(path.name for path in folder.iterdir()) == ["chip.json", "model.gin"]
    return json.loads((folder / "chip.json").read_text())


def test_the_file_says_what_was_measured_where(calibrated: dict[str, Any]) -> None:
    assert calibrated["device"] == {"platform": "cpu", "kind": "cpu", "count": 2}
    assert calibrated["versions"]["jax"] and calibrated["versions"]["hyla_lm"]
    assert calibrated["gin_files"][0].endswith("model.gin")
    assert calibrated["attention"] == ["hyla by blocked"] and calibrated["rows_per_device"] == 2


def test_every_part_step_collective_and_peak_is_timed(calibrated: dict[str, Any]) -> None:
    names: dict[str, list[str]] = {}
    for row in calibrated["measurements"]:
        names.setdefault(row["group"], []).append(row["name"])
        assert 0 < row["lower_quartile"] <= row["seconds"] <= row["upper_quartile"]
        assert row["repeats"] == 3
    assert names["part"] == PARTS
    assert [len(names[group]) for group in ("collective", "peak", "step")] == [9, 2, 1]
    step = calibrated["measurements"][-1]
    assert step["rate"] == pytest.approx(4 * 8 / step["seconds"])


def test_kernels_are_compared_in_outputs_and_gradients(calibrated: dict[str, Any]) -> None:
    for check in calibrated["kernels"]:
        assert check["is_within"] and set(check["errors"]) == {"output", "dq", "dk", "dv"}
        assert all(0 <= x <= check["bounds"][name] for name, x in check["errors"].items())
    named = {(check["kernel"], check["case"].split()[0]) for check in calibrated["kernels"]}
    assert {("blocked", "hyla"), ("blocked", "softmax"), ("linear_chunks", "linear")} <= named
    # Longer than a block, so that the order of sums differs from the reference's.
    assert any(check["errors"]["dq"] > 0 for check in calibrated["kernels"])


def checked(monkeypatch: pytest.MonkeyPatch, run: Any) -> Check:
    """What is found of a kernel that does all."""
    [blocked] = [kernel for kernel in KERNELS if kernel.name == "blocked"]
    monkeypatch.setattr(kernels, "ODD", ())
    monkeypatch.setattr(kernels, "KERNELS", (blocked._replace(run=run(blocked.run)),))
    return check_kernels(small(attention="hyla"), 8, "cpu", lambda line: None)[0]


def test_a_kernel_that_is_off_gives_no_numbers_or_fails_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert checked(monkeypatch, lambda run: run).is_within
    off = checked(monkeypatch, lambda run: lambda request: 1.01 * run(request))
    assert not off.is_within and off.errors["output"] == pytest.approx(0.01, rel=0.01)
    none = checked(monkeypatch, lambda run: lambda request: run(request) * jnp.nan)
    assert not none.is_within and none.errors["output"] is None

    def fails(request: Any) -> Any:
        raise NotImplementedError("no such instruction")

    failed = checked(monkeypatch, lambda run: fails)
    assert not failed.is_within and failed.failure == "no such instruction"


def test_a_kernel_that_is_off_gives_status_1_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    off = Check(
        "blocked", "hyla T8", "float32", {"output": 1.0, "dq": None}, {"output": 1e-4, "dq": 1}
    )
    monkeypatch.setattr("hyla_lm.tools.calibrate.command.measure", lambda *_: ([off], []))
    (tmp_path / "model.gin").write_text(GIN)
    line = [f"--gin_file={tmp_path}/model.gin", f"--output={tmp_path}/chip.json"]
    assert cli.main(["calibrate", *line]) == 1
    out = capsys.readouterr().out
    assert "1 of 1 kernel checks are NOT within their bounds: blocked" in out
    assert json.loads((tmp_path / "chip.json").read_text())["kernels"][0]["is_within"] is False


def test_times_are_medians_with_quartiles() -> None:
    timing = timing_of([5.0, 1.0, 2.0, 3.0, 100.0])
    assert (timing.lower_quartile, timing.seconds, timing.upper_quartile) == (2, 3, 5)
    assert (timing.repeats, timing.spread) == (5, pytest.approx(2 / 3))
    assert timing.times(6).seconds == 18


def test_the_first_run_is_not_counted_and_slow_programs_run_less_often() -> None:
    calls = []
    timed(lambda: calls.append(0), Budget(repeats=5))
    assert len(calls) == 6
    assert timed(lambda: calls.append(0), Budget(repeats=9, seconds=0.0)).repeats == 3
