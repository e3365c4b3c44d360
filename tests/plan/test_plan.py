"""hyla-lm plan: what it says of a step that fits, of one that does not, and of mistakes."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.cli import main as cli
from hyla_lm.tools.plan.compile import parse_refusal
from hyla_lm.tools.plan.topology import TOPOLOGIES, Slice

ROOT = Path(__file__).parents[2]
SEQUENCE = 384  # no other size of the model, so an array with two of it is T x T
MODEL = f"""
TrainConfig.task = @LanguageModel()
TrainConfig.steps = 2000
TrainConfig.batch_size = 16
LanguageModel.data = @Rows()
LanguageModel.sequence_length = {SEQUENCE}
LanguageModel.vocab_size = 512
ModelConfig.num_layers = 2
ModelConfig.model_dim = 128
ModelConfig.num_heads = 4
ModelConfig.head_dim = 32
ModelConfig.mlp_dim = 256
ModelConfig.attention = "linear"
"""
try:
    importlib.metadata.version("libtpu")
    HAS_LIBTPU = True
except importlib.metadata.PackageNotFoundError:
    HAS_LIBTPU = False
needs_libtpu = pytest.mark.skipif(not HAS_LIBTPU, reason="needs libtpu: pip install '.[tpu]'")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["plan", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_an_unknown_slice_is_named_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "--topology=v5e:3x5")
    assert "--topology=v5e:3x5" in said
    assert all(name in said for name in TOPOLOGIES)


def test_without_libtpu_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'hyla_lm[tpu]'" in refused(capsys, "--topology=v5e:4x4")


@pytest.mark.parametrize(("name", "chips"), [("v5e:1x1", 1), ("v5e:2x4", 8), ("v5e:16x16", 256)])
def test_a_slice_knows_its_chips(name: str, chips: int) -> None:
    assert Slice(name).chips == chips


def test_only_the_full_pod_closes_its_rings() -> None:
    assert Slice("v5e:16x16").ring_bytes_per_second == 2 * Slice("v5e:8x16").ring_bytes_per_second


def test_the_compilers_sentence_about_memory_is_read() -> None:
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 21.04G of 15.75G hbm. Exceeded hbm capacity by 5.29G."
    )
    assert parse_refusal(message) == (21.04 * 2**30, 15.75 * 2**30)
    other = (
        "Ran out of memory on HBM, the total memory required for HLO temporaries (40.04G) "
        "exceeds available HBM (15.75G)"
    )
    assert parse_refusal(other) == (40.04 * 2**30, 15.75 * 2**30)
    assert parse_refusal("INTERNAL: Mosaic failed") is None


def run(tmp_path: Path, *arguments: str, status: int = 0) -> tuple[str, str]:
    """A process of its own, since libtpu reads its settings when it is loaded."""
    gin = tmp_path / "model.gin"
    gin.write_text(MODEL)
    command = [sys.executable, "-m", "hyla_lm", "plan", f"--gin_file={gin}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, done.stderr


def planned(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    return json.loads(run(tmp_path, "--topology=v5e:2x4", "--json", "--compiles=0", *arguments)[0])


def kinds(plan: dict[str, Any]) -> set[str]:
    """Of the collectives that carry more than a few numbers."""
    return {x["kind"] for x in plan["collectives"] if x["bytes"] > 1024}


def square_arrays(plan: dict[str, Any]) -> list[Any]:
    shapes = [shape for x in plan["collectives"] for shape in x["shapes"]]
    return [shape for shape in shapes if shape.count(SEQUENCE) >= 2]


@pytest.mark.full
@needs_libtpu
def test_data_parallel_steps_reduce_gradients_and_nothing_else(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan["fits"] and plan["mesh"]["data"] == 8
    assert plan["kernels"] == ["linear_chunks_of_512"] * 2
    assert {x["kind"] for x in plan["collectives"]} == {"all-reduce"}
    assert all(x["axes"] == ["data"] and x["group_size"] == 8 for x in plan["collectives"])
    assert square_arrays(plan) == []
    # The gradient of every parameter once, in float32, and some sums of metrics.
    reduced = sum(x["bytes"] * x["times"] for x in plan["collectives"])
    assert 4 * plan["parameters"] < reduced < 4 * plan["parameters"] + 256
    check_sums(plan)


def check_sums(plan: dict[str, Any]) -> None:
    clock = 1.5e9
    for method in ("estimated", "counted"):
        total = sum(part[method] for part in plan["cycles"])
        assert plan["step_seconds"][f"{method}_compute"] == pytest.approx(total / clock)
    short, long = plan["predicted"]["shortest"], plan["predicted"]["longest"]
    assert 0 < plan["step_seconds"]["bound"] <= short["step_seconds"] <= long["step_seconds"]
    assert long["tokens_per_second"] * long["step_seconds"] == pytest.approx(plan["tokens_a_step"])
    assert short["chip_hours"] == pytest.approx(short["step_seconds"] * 2000 * 8 / 3600)
    assert 0 < short["mfu"] < 1


@pytest.mark.full
@needs_libtpu
def test_fsdp_gathers_parameters_and_scatters_gradients(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--gin.MeshConfig.fsdp=4")
    assert plan["mesh"]["data"] == 2 and square_arrays(plan) == []
    moved = {
        kind: sum(x["bytes"] * x["times"] for x in plan["collectives"] if x["kind"] == kind)
        for kind in ("all-gather", "reduce-scatter", "all-reduce")
    }
    assert set(moved) >= {x["kind"] for x in plan["collectives"]}
    # Each parameter once in bfloat16, but for biases; each gradient once in float32, small ones as
    # sums; the quarter of a chip over `data`.
    parameters, small = plan["parameters"], 2**16
    assert moved["all-gather"] == pytest.approx(2 * parameters, abs=small)
    reduced = moved["reduce-scatter"] + moved["all-reduce"]
    assert reduced == pytest.approx(4 * parameters + parameters, abs=small)
    assert moved["reduce-scatter"] > 0
    whole = planned(tmp_path)
    assert plan["memory"]["optimizer"] < whole["memory"]["optimizer"] / 3


@pytest.mark.full
@needs_libtpu
def test_the_model_axis_moves_no_pairs(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--gin.MeshConfig.data=2", "--gin.MeshConfig.model=4")
    assert square_arrays(plan) == []
    assert {axis for x in plan["collectives"] for axis in x["axes"]} == {"data", "model"}


@pytest.mark.full
@needs_libtpu
def test_a_step_that_does_not_fit_says_what_to_change(tmp_path: Path) -> None:
    large = ("--topology=v5e:2x4", "--gin.TrainConfig.batch_size=16384")
    large += ('--gin.ModelConfig.attention="hyla"',)
    large += ('--gin.ModelConfig.attention_implementation="reference"',)
    out, said = run(tmp_path, *large, "--json", status=1)
    plan = json.loads(out)
    assert plan["fits"] is False
    assert plan["needed_bytes"] > plan["available_bytes"] == 15.75 * 2**30
    for setting in ("attention_implementation", "accumulate_steps", "batch_size", "remat", "fsdp"):
        assert setting in said
    assert "GiB a chip" in said


@pytest.mark.full
@needs_libtpu
def test_two_processes_make_the_same_cache_entry(tmp_path: Path) -> None:
    """So the key holds nothing of the process: no folder of dumps, no flags of the plan."""
    names = []
    for folder in ("one", "two"):
        plan = planned(tmp_path, f"--cache_dir={tmp_path / folder}")
        (entry,) = (tmp_path / folder).iterdir()
        assert (entry.name, entry.stat().st_size) == (
            plan["cache"]["name"],
            plan["cache"]["size_bytes"],
        )
        names.append(entry.name)
    assert names[0] == names[1]


@pytest.mark.full
@needs_libtpu
def test_the_terminal_shows_every_part(tmp_path: Path) -> None:
    shown, said = run(tmp_path, "--topology=v5e:2x2", "--compiles=1", "--price_per_chip_hour=1.2")
    assert "largest batch, compile 1 of at most 1" in said
    for part in (
        "ModelConfig.num_layers = 2",
        "data 4",
        "GiB a chip",
        "all-reduce",
        "projections",
        "2 x linear",
    ):
        assert part in shown
    for part in ("Spread", "MFU", "chip-hours", "cost", "Method", "no figure has been compared"):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 80
