"""Weights & Biases, by a package that notes what it is asked for."""

import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from etils import epath

from hyla_lm.errors import UserError, exit_status
from hyla_lm.logs.sinks import LoggedRun
from hyla_lm.logs.wandb import ID, WandB


class Error(Exception):
    """As wandb.errors has it."""


class CommError(Error): ...


class AuthenticationError(CommError): ...


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Mock:
    errors = Mock(Error=Error, CommError=CommError, AuthenticationError=AuthenticationError)
    package = Mock(errors=errors)
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.setitem(sys.modules, "wandb.errors", errors)
    return package


def test_a_resumed_run_is_the_same_one_with_its_numbers(tmp_path: Path, wandb: Mock) -> None:
    for first in (0, 10):
        sink = WandB(project="trials").open_sink(LoggedRun(epath.Path(tmp_path), first))
        sink.write(first, {"text/samples": "Once"})
        sink.write(first + 1, {"train/loss_nats": 2.5, "text/samples": "upon"})
        sink.close()
    opened = [call.kwargs for call in wandb.init.call_args_list]
    assert {run["id"] for run in opened} == {(tmp_path / ID).read_text().strip()}
    assert [run["resume"] for run in opened] == ["allow", "allow"]
    run = wandb.init.return_value
    logged = [call.args[0] for call in run.log.call_args_list]
    assert logged == [{"step": step, "train/loss_nats": 2.5} for step in (1, 11)]
    assert run.finish.call_count == 2


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"@WandB\(\) of LogConfig.sinks needs wandb: pip install"):
        WandB().open_sink(LoggedRun(epath.Path("anywhere"), 0))


@pytest.mark.parametrize(
    ("error", "status"), [(CommError("no route"), 69), (AuthenticationError("no key"), 2)]
)
def test_a_failure_ends_the_run_with_a_sentence(
    error: Exception, status: int, tmp_path: Path, wandb: Mock
) -> None:
    wandb.init.side_effect = error
    with pytest.raises(UserError, match=rf"W&B failed \({error}\): .*WANDB_MODE=offline") as told:
        WandB().open_sink(LoggedRun(epath.Path(tmp_path), 0))
    assert exit_status(told.value) == status
