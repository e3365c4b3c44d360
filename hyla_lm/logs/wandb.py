"""Weights & Biases, which is imported when a run uses it."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from etils import epath

from hyla_lm.config.declare import configurable, setting
from hyla_lm.ending import reason_of
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.logs.sinks import LoggedRun, Value
from hyla_lm.storage import bucket_of, read_whole, write_whole

ID = ".wandb_id"  # file of a run's folder with its id at W&B
FINISH_SECONDS = 120.0


@configurable
@dataclass(frozen=True)
class WandB:
    """Weights & Biases, as a sink of LogConfig.sinks; the account is that of `wandb login`.

    With WANDB_MODE=offline all stays on this machine, for `wandb sync`: in the run's folder, or
    where the command starts for a run in a bucket.
    """

    project: str = setting("hyla_lm", "project of the run")
    entity: str | None = setting(None, "user or team; None is the account's own")

    def open_sink(self, run: LoggedRun) -> "WandBRun":
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "@WandB() of LogConfig.sinks needs wandb: pip install 'hyla_lm[wandb]'."
            ) from error
        with _one_sentence():
            opened = wandb.init(
                project=self.project,
                entity=self.entity,
                name=run.folder.name,
                id=_id(run.folder),
                resume="allow",
                dir=None if bucket_of(run.folder) else str(run.folder),
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    finish_timeout=FINISH_SECONDS,
                    finish_timeout_raises=True,
                ),
            )
        opened.define_metric("step", hidden=True)
        opened.define_metric("*", step_metric="step")
        return WandBRun(opened)


class WandBRun:
    """The numbers of one run over its steps.

    W&B cannot take points back: those that a resumed run writes again are there twice.
    """

    def __init__(self, run: Any):
        self._run = run

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        numbers = {tag: value for tag, value in values.items() if isinstance(value, float | int)}
        if numbers:
            self._run.log({"step": step, **numbers})

    def close(self) -> None:
        with _one_sentence():
            self._run.finish()


def _id(folder: epath.Path) -> str:
    """The id of the run at W&B, which its first process writes to its folder."""
    if (known := read_whole(folder / ID)) is not None:
        return known.decode().strip()
    new = uuid.uuid4().hex
    write_whole(folder / ID, f"{new}\n".encode())
    return new


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Errors of W&B as one sentence; what the network may mend is Unavailable."""
    from wandb.errors import AuthenticationError, CommError, Error

    try:
        yield
    except (Error, TimeoutError) as error:
        may_pass = isinstance(error, CommError | TimeoutError)
        kind = Unavailable if may_pass and not isinstance(error, AuthenticationError) else UserError
        raise kind(
            f"W&B failed ({reason_of(error)}): see `wandb login` and the network, set "
            "WANDB_MODE=offline, or leave @WandB() out of LogConfig.sinks."
        ) from error
