"""Weights & Biases, which is imported when a run uses it."""

import html
import io
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from etils import epath

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.logs.sinks import Histogram, LoggedRun, Value
from hyla_lm.storage import bucket_of, read_whole, write_whole

ID = ".wandb_id"  # file of a run's folder with its id at W&B
FINISH_SECONDS = 120.0


@configurable
@dataclass(frozen=True)
class WandB:
    """Weights & Biases, as a sink of LogConfig.sinks; the account is that of `wandb login`.

    With WANDB_MODE=offline all stays in the run's folder, for `wandb sync`.
    """

    project: str = setting("hyla_lm", "project of the run")
    entity: str | None = setting(None, "user or team; None is the account's own")

    def open_sink(self, run: LoggedRun) -> "WandBRun":
        try:
            import PIL  # noqa: F401
            import wandb
        except ImportError as error:
            raise UserError(
                f"@WandB() of LogConfig.sinks needs {error.name}: pip install 'hyla_lm[wandb]'."
            ) from error
        return WandBRun(wandb, self, run)


class WandBRun:
    """One run at W&B, which a process that resumes it resumes there too.

    Points are shown over our steps. W&B cannot take points back: those that a resumed run writes
    again are there twice, equal but for times.
    """

    def __init__(self, wandb: Any, config: WandB, run: LoggedRun):
        self._wandb, in_bucket = wandb, bool(bucket_of(run.folder))
        with _one_sentence():
            self._run = wandb.init(
                project=config.project,
                entity=config.entity,
                name=run.folder.name,
                id=_id(run.folder),
                resume="allow",
                dir=tempfile.gettempdir() if in_bucket else str(run.folder),
                config=dict(run.settings),
                allow_val_change=True,
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    finish_timeout=FINISH_SECONDS,
                    finish_timeout_raises=True,
                ),
            )
        if in_bucket and self._run.offline:
            self.close()
            raise UserError(
                f"WANDB_MODE=offline keeps a run in its folder but {run.folder} is in a bucket: "
                "set WANDB_MODE=online or leave @WandB() out of LogConfig.sinks."
            )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        points = {tag: self._point(value) for tag, value in values.items()}
        with _one_sentence():
            self._run.log({"step": step, **points})

    def close(self) -> None:
        with _one_sentence():
            self._run.finish()

    def _point(self, value: Value) -> Any:
        if isinstance(value, Histogram):
            counts = np.asarray(value.count_N), np.asarray(value.edge_N1)
            return self._wandb.Histogram(np_histogram=counts)
        if isinstance(value, bytes):
            from PIL import Image

            return self._wandb.Image(Image.open(io.BytesIO(value)))
        if isinstance(value, str):
            return self._wandb.Html(f"<pre>{html.escape(value)}</pre>")
        return value


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
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise kind(
            f"W&B failed ({reason}): see `wandb login` and the network, set WANDB_MODE=offline, or "
            "leave @WandB() out of LogConfig.sinks."
        ) from error
