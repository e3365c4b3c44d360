"""Weights & Biases, by a package that notes what it is asked for."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from etils import epath

from hyla_lm.errors import UserError, exit_status
from hyla_lm.logs.sinks import LoggedRun
from hyla_lm.logs.wandb import ID, WandB


class Error(Exception):
    """As wandb.errors has it."""


class CommError(Error): ...


class AuthenticationError(CommError): ...


class Run:
    """A run at W&B that was opened with these options."""

    def __init__(self, **options: Any):
        self.options, self.logged, self.is_finished = options, [], False

    def define_metric(self, name: str, **options: Any) -> None: ...

    def log(self, row: dict[str, Any]) -> None:
        self.logged.append(row)

    def finish(self) -> None:
        self.is_finished = True


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that `wandb.init` has opened."""
    runs: list[Run] = []

    def init(**options: Any) -> Run:
        runs.append(Run(**options))
        return runs[-1]

    errors = SimpleNamespace(
        Error=Error, CommError=CommError, AuthenticationError=AuthenticationError
    )
    package = SimpleNamespace(init=init, Settings=SimpleNamespace, errors=errors)
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.setitem(sys.modules, "wandb.errors", errors)
    return runs


def test_a_resumed_run_is_the_same_one_with_its_numbers(tmp_path: Path, opened: list[Run]) -> None:
    for first in (0, 10):
        sink = WandB(project="trials").open_sink(LoggedRun(epath.Path(tmp_path), first))
        sink.write(first, {"text/config": "Once"})
        sink.write(first + 1, {"train/loss_nats": 2.5, "text/samples": "upon"})
        sink.close()
    assert {run.options["id"] for run in opened} == {(tmp_path / ID).read_text().strip()}
    assert {run.options["resume"] for run in opened} == {"allow"}
    assert [run.logged for run in opened] == [
        [{"step": step, "train/loss_nats": 2.5}] for step in (1, 11)
    ]
    assert all(run.is_finished for run in opened)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"@WandB\(\) of LogConfig.sinks needs wandb: pip install"):
        WandB().open_sink(LoggedRun(epath.Path("anywhere"), 0))


@pytest.mark.parametrize(
    ("error", "status"), [(CommError("no route"), 69), (AuthenticationError("no key"), 2)]
)
def test_a_failure_ends_the_run_with_a_sentence(
    error: Exception, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(sys.modules["wandb"], "init", fail)
    with pytest.raises(UserError, match=rf"W&B failed \({error}\): .*WANDB_MODE=offline") as told:
        WandB().open_sink(LoggedRun(epath.Path(tmp_path), 0))
    assert exit_status(told.value) == status
