"""A run may begin with the parameters of another, or go on from a copy of a checkpoint."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from hyla_lm.checkpoint.beginning import match
from hyla_lm.config.experiment import WarmStart
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.run.program import make_program
from tests.faults.runs import arrays, as_bytes, position
from tests.run_lines import measured
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

STEPS, SAVED = 12, 5
SOFTMAX = ["ModelConfig.attention = 'softmax'", "ModelConfig.num_layers = 2"]


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = "CheckpointConfig.keep = 9\n"
    return write_gin(tmp_path_factory.mktemp("beginning"), tiny_rows, more)


@pytest.fixture(scope="module")
def source(gin_file: Path) -> Path:
    """A finished run with checkpoints of steps 5, 10 and 12."""
    workdir = gin_file.parent / "source"
    assert train(gin_file, workdir) == 0
    return workdir


def warm(source: Path, **more: Any) -> list[str]:
    settings = {"run": str(source), **more}
    return [f"WarmStart.{name} = {value!r}" for name, value in settings.items()]


def named(state: dict[str, Any]) -> dict[str, Any]:
    """Arrays by the words of their path, which are the same with and without classes."""
    return {"/".join(re.findall(r"\w+", path)): array for path, array in state.items()}


def parameters(state: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in state.items() if name.startswith("params/")}


def first_state(gin_file: Path, bindings: list[str]) -> dict[str, Any]:
    state = make_program(read_experiment([str(gin_file)], bindings)).init()
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return named({jax.tree_util.keystr(path): as_bytes(np.asarray(leaf)) for path, leaf in leaves})


def test_parameters_of_the_same_name_are_taken_and_all_else_is_new(
    gin_file: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, given = tmp_path / "run", [*SOFTMAX, *warm(source, step=10)]
    assert train(gin_file, run, *given) == 0
    out = capsys.readouterr().out
    untouched = first_state(gin_file, given)
    begun, taken = named(arrays(run, 0)), parameters(named(arrays(source, 10)))
    assert {name: begun[name] for name in taken} == taken
    new = {name for name in begun if begun[name] == untouched[name]}
    assert set(begun) - set(parameters(begun)) <= new, "the optimizer begins anew"
    assert set(parameters(begun)) - set(taken) <= new
    assert any("block_1" in name for name in new)
    assert position(run, 0)["streams"] == [{"rows_read": 0}]
    assert "10 of 18 arrays, 7,216 parameters" in out
    assert "blocks/block_1/attention/key/kernel (16, 2, 8)" in out and "and 2 more" in out
    assert "differs in    ModelConfig.attention, ModelConfig.num_layers" in out


SAVED_SHAPES = {"embed/table": (8, 2), "block_0/up": (2, 4), "head/kernel": (2, 8)}


def matched(own: dict[str, tuple[int, ...]], **settings: Any) -> tuple[list[str], ...]:
    shapes = [
        {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in of.items()}
        for of in (own, SAVED_SHAPES)
    ]
    return match(*shapes, WarmStart(run="old", **settings))


def test_names_are_taken_new_or_left_out() -> None:
    own = {"embed/table": (8, 2), "block_0/up": (2, 4), "block_1/up": (2, 4)}
    up, table, head = "block_0/up", "embed/table", "head/kernel"
    assert matched(own) == ([table, up], ["block_1/up"], [head])
    assert matched(own, only=("embed/*",)) == ([table], [up, "block_1/up"], [up, head])
    assert matched(own, ignore=("embed/*",)) == ([up], [table, "block_1/up"], [table, head])
    wider = {"embed/table": (9, 2), up: (2, 4)}
    with pytest.raises(UserError, match=r"has embed/table as float32 \(8, 2\) but this model has"):
        matched(wider)
    assert matched(wider, ignore=(table,))[0] == [up]


def test_a_run_once_begun_needs_the_other_no_more_and_records_it(
    gin_file: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, run = tmp_path / "gone", tmp_path / "run"
    shutil.copytree(source, gone)
    assert train(gin_file, run, "TrainConfig.steps = 5", *warm(gone)) == 0
    shutil.rmtree(gone)
    assert train(gin_file, run, *warm(gone)) == 0
    assert capsys.readouterr().out.count("step 12 of") == 2
    for path in (run / "summary.json", run / "checkpoints" / "12" / "meta" / "metadata"):
        found = json.loads(path.read_text())
        origin = found.get("began_from", found.get("origin"))
        assert (origin["run"], origin["step"]) == (str(gone), STEPS)
    assert train(gin_file, run, *warm(source)) == 2
    assert f"began with WarmStart.run = '{gone}', not '{source}'" in capsys.readouterr().err


def test_a_run_goes_on_from_a_copy_of_a_checkpoint(
    gin_file: Path, source: Path, tmp_path: Path
) -> None:
    """With the settings of its trunk it ends as that does."""
    run, saved = tmp_path / "run", f"checkpoints/{SAVED}"
    shutil.copytree(source / saved, run / saved)
    assert train(gin_file, run) == 0
    assert arrays(run, STEPS) == arrays(source, STEPS)
    assert measured(run) == [line for line in measured(source) if line["step"] > SAVED]


@pytest.mark.parametrize(
    ("bindings", "says"),
    [
        (["ModelConfig.mlp_dim = 64"], "feedforward/down/kernel as float32 (32, 16) but"),
        (["WarmStart.ignore = ('*',)"], "has no parameter to take"),
        (["WarmStart.only = ('embedding/*',)"], "'embedding/*' of WarmStart names no param"),
        (["WarmStart.step = 7"], "has no checkpoint of step 7 (it has 5, 10, 12)"),
    ],
)
def test_what_cannot_begin_is_one_sentence(
    bindings: list[str],
    says: str,
    gin_file: Path,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert train(gin_file, tmp_path / "run", *warm(source), *bindings) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1
    assert not (tmp_path / "run" / "checkpoints" / "0").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
