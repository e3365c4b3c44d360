"""The canary stops a run whose kernel is wrong, and leaves every other run as it is."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest

from hyla_lm.cli.main import main
from hyla_lm.diagnostics.canary import BOUNDS, is_within
from hyla_lm.model.config import ModelConfig
from tests.faults.faulty import Lie, backward, forward, make_kernels_lie, nothing, train
from tests.run_lines import measured

EVERY_5 = "CanaryConfig.every=5"


@pytest.mark.parametrize(
    ("lie", "accumulate_steps"),
    [
        *((forward, 1), (backward, 1), (nothing, 1), (backward, 4)),
        *(pytest.param(lie, 4, marks=pytest.mark.full) for lie in (forward, nothing)),
    ],
)
def test_a_kernel_that_is_wrong_stops_the_run_before_it_trains(
    lie: Lie,
    accumulate_steps: int,
    tiny_gin: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_kernels_lie(monkeypatch, lie)
    accumulate = f"TrainConfig.accumulate_steps={accumulate_steps}"
    assert train(tiny_gin, tmp_path / "run", EVERY_5, accumulate) == 2
    error = capsys.readouterr().err
    assert "step 0: the kernel that trains (blocked) and the reference are apart" in error
    assert "above CanaryConfig.bound = 0.001" in error
    assert "ModelConfig.attention_implementation to 'reference'" in error
    (line,) = measured(tmp_path / "run", "canary/")
    assert line["step"] == 0 and not line["canary/gradient_difference"] <= BOUNDS["float32"]


def test_a_bound_above_the_fault_lets_the_run_go_on(
    tiny_gin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_kernels_lie(monkeypatch, backward)
    assert train(tiny_gin, tmp_path / "run", EVERY_5, "CanaryConfig.bound=0.1") == 0
    for line in measured(tmp_path / "run", "canary/"):
        assert line["canary/loss"] == pytest.approx(line["canary/reference_loss"], rel=1e-6)
        assert 2e-3 < line["canary/gradient_difference"] < 0.1


@pytest.mark.usefixtures("programs_once")
def test_in_bfloat16_a_sound_kernel_is_below_the_bound(tiny_gin: Path, tmp_path: Path) -> None:
    assert train(tiny_gin, tmp_path / "run", EVERY_5, 'ModelConfig.dtype="bfloat16"') == 0
    lines = measured(tmp_path / "run", "canary/")
    assert all(line["canary/gradient_difference"] < BOUNDS["bfloat16"] / 3 for line in lines)


@pytest.mark.usefixtures("programs_once")
def test_a_canary_is_far_below_its_bound_and_changes_nothing_that_is_trained(
    tiny_gin: Path, tmp_path: Path
) -> None:
    assert train(tiny_gin, tmp_path / "with", EVERY_5) == 0
    assert train(tiny_gin, tmp_path / "without") == 0
    for prefix in ("train/", "validation/"):
        assert measured(tmp_path / "with", prefix) == measured(tmp_path / "without", prefix)
    lines = measured(tmp_path / "with", "canary/")
    assert [line["step"] for line in lines] == [0, 5, 10]
    assert all(line["canary/gradient_difference"] < BOUNDS["float32"] / 10 for line in lines)


@pytest.mark.parametrize(("bindings", "compiled"), [([], False), ([EVERY_5], True)])
def test_a_canary_that_is_off_compiles_nothing(
    bindings: list[str],
    compiled: bool,
    tiny_gin: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with jax.log_compiles(), caplog.at_level("DEBUG", logger="jax"):
        assert train(tiny_gin, tmp_path / "run", "TrainConfig.steps=5", *bindings) == 0
    made = [r.getMessage() for r in caplog.records if "XLA compilation" in r.getMessage()]
    assert any("train_step" in message for message in made)
    assert any("compare" in message for message in made) == compiled


def test_generated_tasks_compare_on_their_evaluation_sets_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task marks its sets, so that the loss tells whose turn it was."""
    gin = tmp_path / "fuzzy.gin"
    gin.write_text(
        'include "gin/evals/fuzzy_logic_strict.gin"\n'
        "TrainConfig.steps = 6\nTrainConfig.batch_size = 8\nOptimizerConfig.warmup_steps = 2\n"
        "OptimizerConfig.learning_rate = 0.0\nCanaryConfig.every = 1\n"
        "ModelConfig.num_layers = 1\nModelConfig.model_dim = 8\nModelConfig.num_heads = 2\n"
        "ModelConfig.mlp_dim = 8\nFuzzyLogic.evaluation_examples = 20\nSEQUENCE_LENGTH = 8\n"
    )
    workdir = tmp_path / "run"
    assert main(["train", f"--gin_file={gin}", f"--workdir={workdir}"]) == 0
    losses = [line["canary/loss"] for line in measured(workdir, "canary/")]
    sets = json.loads((workdir / "summary.json").read_text())["validation"]
    count = sum(name.endswith("_r2") for name in sets)
    assert count > 1 and len(set(losses)) == count
    assert losses == [losses[step % count] for step in range(7)]


@pytest.mark.parametrize(
    ("loss", "gradient", "stops"),
    [
        (0.0, 0.0, False),
        (1e-3, 1e-3, False),
        (1.1e-3, 0.0, True),
        (0.0, 1.1e-3, True),
        (float("nan"), 0.0, True),
        (0.0, float("nan"), True),
        (float("inf"), float("nan"), True),
    ],
)
def test_either_difference_above_the_bound_stops(loss: float, gradient: float, stops: bool) -> None:
    found = {"loss_difference": loss, "gradient_difference": gradient}
    assert is_within(found, 1e-3) != stops


def test_the_bounds_are_of_the_dtypes_that_a_model_may_have() -> None:
    (dtype,) = [f for f in dataclasses.fields(ModelConfig) if f.name == "dtype"]
    assert set(BOUNDS) == set(dtype.metadata["choices"])
