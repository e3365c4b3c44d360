"""A run that is finished: how it is known, and what a person is told who starts it again."""

from typing import Any

from hyla_lm.checkpoint.saved_files import changed_files
from hyla_lm.config.experiment import Experiment
from hyla_lm.optim import make_schedule, span_of_fall
from hyla_lm.parallel import multihost
from hyla_lm.run.run_folder import RunFolder
from hyla_lm.storage import read_whole
from hyla_lm.tasks.language_model import LanguageModel


def finished_summary(folder: RunFolder, experiment: Experiment) -> dict[str, Any]:
    """The summary of a run that has done all it owes with these settings; else empty.

    The summary is written last, so a run that was killed before has none. A folder that was trained
    with other settings, or whose checkpoints are not as they were, is looked at as any other. All
    processes must call it.
    """
    summary, last = folder.read_summary(), experiment.train.steps
    is_finished = (
        summary.get("step") == last
        and read_whole(folder.path / "config.gin") == experiment.text.encode()
        and _are_as_saved(folder, last)
    )
    return summary if all(multihost.gather(is_finished)) else {}


def _are_as_saved(folder: RunFolder, last: int) -> bool:
    """Whether checkpoints stand alone in their folder, the last one with the files of its save."""
    if not folder.checkpoints.exists():
        return False
    names = [path.name for path in folder.checkpoints.iterdir()]
    is_clean = str(last) in names and all(map(str.isdecimal, names))
    return is_clean and not changed_files(folder.path, last)


def finished_lines(experiment: Experiment, workdir: str, summary: dict[str, Any]) -> list[str]:
    """That it is finished and what it reached, how to train longer, where its curves are."""
    steps = experiment.train.steps
    found = summary.get("validation", {}).items()
    reached = ", ".join(f"{name} {value:.4f}" for name, value in found)
    curves = f"curves: tensorboard --logdir {workdir}"
    if isinstance(experiment.train.task, LanguageModel):
        curves += f"; text: hyla-lm sample --workdir={workdir} --prompt=TEXT"
    return [
        f"{workdir} is finished at step {steps:,}; validation {reached}",
        f"to train longer: --gin.TrainConfig.steps={2 * steps}; {_rise(experiment)}",
        curves,
    ]


def _rise(experiment: Experiment) -> str:
    """What more steps do to the learning rate."""
    steps, config = experiment.train.steps, experiment.optimizer
    more = 2 * steps
    now = float(make_schedule(config, steps)(steps))
    then = float(make_schedule(config, more)(steps))
    begin, _ = span_of_fall(config, more, config.warmup_steps)
    falls = "falls" if begin <= steps else f"stays until step {begin:,} and falls"
    return (
        f"the learning rate, {now:.2g} now, is then {then:.2g} and {falls} until the new last step"
    )
