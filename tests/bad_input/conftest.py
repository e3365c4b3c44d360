"""Wrong commands: status 2, one sentence that names what to change, and no step is trained."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.input.prepared import Rows
from tests.tiny_runs import arguments as train_arguments
from tests.tiny_runs import copied, train, write_gin

Reject = Callable[..., str]
SMALLER = """
TrainConfig.steps = 2
ModelConfig.model_dim = 8
ModelConfig.mlp_dim = 8
OptimizerConfig.warmup_steps = 1
"""


def status_of(*arguments: object) -> object:
    """The status of a command; argparse ends a wrong command line itself."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stopped:
        return stopped.code


@pytest.fixture
def reject(capsys: pytest.CaptureFixture[str]) -> Reject:
    """Runs a command that must fail; returns its one line on stderr."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        status = status_of(*arguments)
        out, err = capsys.readouterr()
        assert (status, out) == (2, ""), err
        assert err.startswith("hyla-lm") and err.endswith("\n") and err.count("\n") == 1, err
        return err

    return run


@pytest.fixture
def reject_train(reject: Reject, tiny_gin: Path, tmp_path: Path) -> Reject:
    """Trains the tiny run with bindings that must not reach the first step."""

    def run(*bindings: str) -> str:
        workdir = tmp_path / "run"
        line = reject(*train_arguments(tiny_gin, workdir, *bindings))
        assert not (workdir / "metrics.jsonl").exists()
        return line

    return run


@pytest.fixture
def damaged(tiny_rows: Rows, tmp_path: Path) -> Rows:
    return copied(tiny_rows, tmp_path / "damaged")


def bound_to(rows: Rows) -> list[str]:
    return [f'Rows.{name} = "{getattr(rows, name)}"' for name in ("train", "validation")] + [
        f'Rows.tokenizer = "{rows.tokenizer}"'
    ]


@pytest.fixture(scope="session")
def trained(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run of two steps."""
    home = tmp_path_factory.mktemp("trained")
    assert train(write_gin(home, tiny_rows, SMALLER), home / "run") == 0
    return home / "run"
