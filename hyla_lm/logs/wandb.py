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
from hyla_lm.logs.protocol import Histogram, Hyperparameter, Shown
from hyla_lm.storage import bucket_of, read_whole, write_retrying

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

    def open_sink(self, run: Shown) -> "WandBRun":
        try:
            import PIL  # noqa: F401
            import wandb
        except ImportError as error:
            raise UserError(
                f"@WandB() of LogConfig.sinks needs {error.name}: pip install 'hyla_lm[wandb]'."
            ) from error
        return WandBRun(wandb, self, run)


class WandBRun:
    """One run at W&B; a process that goes on with a run of ours goes on with the same one.

    Points are shown over our steps. W&B cannot take points back: those that a resumed run writes
    again are there twice, equal but for times.
    """

    def __init__(self, wandb: Any, config: WandB, run: Shown):
        self._wandb, in_bucket = wandb, bool(bucket_of(run.folder))
        with _told():
            self._run = wandb.init(
                project=config.project,
                entity=config.entity,
                name=run.name,
                id=_id(run.folder),
                resume="allow",
                dir=tempfile.gettempdir() if in_bucket else str(run.folder),
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

    def hyperparameters(self, values: Mapping[str, Hyperparameter]) -> None:
        with _told():
            self._run.config.update(dict(values), allow_val_change=True)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._log(step, values)

    def histogram(self, step: int, tag: str, values: Histogram) -> None:
        counted = np.asarray(values.count_N), np.asarray(values.edge_N1)
        self._log(step, {tag: self._wandb.Histogram(np_histogram=counted)})

    def image(self, step: int, tag: str, png: bytes) -> None:
        from PIL import Image

        self._log(step, {tag: self._wandb.Image(Image.open(io.BytesIO(png)))})

    def text(self, step: int, tag: str, markdown: str) -> None:
        self._log(step, {tag: self._wandb.Html(f"<pre>{html.escape(markdown)}</pre>")})

    def close(self) -> None:
        with _told():
            self._run.finish()

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        with _told():
            self._run.log({"step": step, **values})


def _id(folder: epath.Path) -> str:
    """The id of the run at W&B, kept in its folder from the first process on."""
    if (known := read_whole(folder / ID)) is not None:
        return known.decode().strip()
    new = uuid.uuid4().hex
    write_retrying(folder / ID, f"{new}\n".encode())
    return new


@contextmanager
def _told() -> Iterator[None]:
    """Errors of W&B as one sentence; what the network may mend is Unavailable."""
    from wandb.errors import AuthenticationError, CommError, Error

    try:
        yield
    except (Error, TimeoutError) as error:
        is_passing = isinstance(error, CommError | TimeoutError)
        kind = (
            Unavailable if is_passing and not isinstance(error, AuthenticationError) else UserError
        )
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise kind(
            f"W&B failed ({reason}): see `wandb login` and the network, set WANDB_MODE=offline, or "
            "leave @WandB() out of LogConfig.sinks."
        ) from error
