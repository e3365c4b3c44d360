"""Evaluation tasks through the trainer: output, files, resumes, presets and sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.cli.main import main
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.evals.experiments.benchmarks import BENCHMARKS
from hyla_lm.model.flops import count_parameters
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import make_program
from tests.run_lines import measured

ROOT = Path(__file__).parents[2]
SMALL = """
TrainConfig.steps = 6
TrainConfig.batch_size = 8
TrainConfig.eval_every = 3
LogConfig.every = 2
CheckpointConfig.every = 3
ModelConfig.num_layers = 1
ModelConfig.model_dim = 8
ModelConfig.num_heads = 2
ModelConfig.mlp_dim = 8
OptimizerConfig.warmup_steps = 2
"""
SUITES = {
    "fuzzy_logic": "FuzzyLogic.evaluation_examples = 20\nSEQUENCE_LENGTH = 8",
    "sraven": "Sraven.evaluation_examples = 20\nSraven.num_features = 2",
    "match3": "Match3.evaluation_examples = 20",
    "hyperteacher": "Hyperteacher.evaluation_examples = 20\nHyperteacher.sequence_length = 8",
}


def small_gin(suite: str, folder: Path) -> Path:
    path, of_suite = folder / f"{suite}.gin", BENCHMARKS[suite].presets
    name = of_suite.get("strict") or of_suite["plain"]
    path.write_text(f'include "gin/evals/{name}"\n{SMALL}{SUITES[suite]}\n')
    return path


def test_a_run_logs_every_set_and_resumes_but_with_no_other_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "run"
    command = ["train", f"--gin_file={small_gin('fuzzy_logic', tmp_path)}", f"--workdir={workdir}"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "covering, seed 0" in out and "\n  held_out" in out

    lines = measured(workdir)
    evaluated = [line["step"] for line in lines if "validation/held_out_r2" in line]
    assert evaluated == [3, 6]
    assert [line["step"] for line in lines if "train/r2" in line] == [2, 4, 6]
    (workdir / "checkpoints" / "6").rename(tmp_path / "6")
    assert main(command) == 0
    assert measured(workdir) == lines
    capsys.readouterr()
    assert main(["evaluate", f"--workdir={workdir}"]) == 0
    validation = json.loads((workdir / "summary.json").read_text())["validation"]
    assert json.loads(capsys.readouterr().out) == {"step": 6, **validation}
    assert main([*command, "--gin.FuzzyLogic.held_out_fraction=0.4"]) == 2
    assert "data.held_out_fraction" in capsys.readouterr().err


@pytest.mark.parametrize("suite", SUITES)
def test_plans_compile_the_shapes_that_training_gets(suite: str, tmp_path: Path) -> None:
    task: Any = read_experiment([str(small_gin(suite, tmp_path))], []).train.task
    batch = next(task.prepare_task(8).train_stream(BatchShard(8), None))
    planned = task.planned_objective().batch_shapes(8)
    assert {name: (a.shape, a.dtype) for name, a in planned.items()} == {
        name: (a.shape, a.dtype) for name, a in batch.items()
    }


@pytest.mark.parametrize(("suite", "count"), [("fuzzy_logic", 151_265), ("sraven", 402_824)])
def test_models_have_the_parameters_of_the_paper_and_one_seed(suite: str, count: int) -> None:
    gin_file = str(ROOT / "gin" / "evals" / f"{suite}_paper.gin")
    program = make_program(read_experiment([gin_file], ["SEED = 2"]))
    assert count_parameters(program.abstract_state.params) == count
    model, train = program.experiment.model, program.experiment.train
    assert model.relative_buckets == model.relative_max_distance == program.task.sequence_length
    assert (train.seed, train.task.seed) == (2, 2)  # type: ignore
