"""Runs of tests share a traced program only where they compute the same."""

from pathlib import Path

import pytest

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.run.program import make_program

pytestmark = pytest.mark.usefixtures("programs_once")
OTHER = (
    *("OptimizerConfig.learning_rate = 1.0", "TrainConfig.seed = 1", "ModelConfig.mlp_dim = 8"),
    *("TrainConfig.steps = 13", "TrainConfig.batch_size = 16", "UpdatePolicy.nonfinite = 'skip'"),
    *("LogConfig.layers = True", "LanguageModel.document_losses = False"),
)


def steps(gin_file: Path, *bindings: str) -> list[object]:
    """The train step without and with the bindings."""
    given = [str(gin_file)]
    programs = [make_program(read_experiment(given, chosen)) for chosen in ([], bindings)]
    return [program.train_step for program in programs]


def test_what_a_run_writes_and_when_is_no_part_of_its_program(tiny_gin: Path) -> None:
    plain, other = steps(tiny_gin, "LogConfig.every = 1", "CheckpointConfig.every = 1")
    assert plain is other


@pytest.mark.parametrize("binding", OTHER)
def test_what_is_computed_is(tiny_gin: Path, binding: str) -> None:
    plain, other = steps(tiny_gin, binding)
    assert plain is not other
