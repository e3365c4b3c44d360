"""What a sweep would do: its points, their folders, what is done of them, steps and tokens."""

from collections.abc import Sequence

from hyla_lm.storage import as_path
from hyla_lm.tools.sweep.report import plain
from hyla_lm.tools.sweep.runs import Run


def listing(runs: Sequence[Run]) -> list[str]:
    """A line for each run, and the sum of all."""
    rows = [["folder", "steps", "tokens", "state"], *map(_row, runs)]
    points = len({run.point.name for run in runs})
    tokens = [_tokens(run) for run in runs]
    whole = f", {sum(filter(None, tokens)):,} tokens" if all(tokens) else ""
    steps = sum(run.experiment.train.steps for run in runs)
    counted = f"{points} points x {len(runs) // points} seeds = {len(runs)} runs"
    return [*plain(rows), f"{counted}, {steps:,} steps{whole}"]


def _row(run: Run) -> list[str]:
    tokens = _tokens(run)
    steps = f"{run.experiment.train.steps:,}"
    return [run.name, steps, "not known" if tokens is None else f"{tokens:,}", _state(run)]


def _tokens(run: Run) -> int | None:
    """The tokens that a run trains on, where its task says how long a row is."""
    train = run.experiment.train
    length = getattr(train.task, "sequence_length", None)
    return None if length is None else train.steps * train.batch_size * length


def _state(run: Run) -> str:
    if run.summary():
        return "finished"
    is_begun = (as_path(run.workdir) / "config.gin").exists()
    return "begun" if is_begun else "to do"
