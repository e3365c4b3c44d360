"""Reports in TensorBoard, beside the curves of their runs."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from hyla_lm.evals.experiments.results import Section
from hyla_lm.logs.tensorboard import TensorBoard


def show(workdir: Path, sections: Iterable[Section]) -> None:
    """Writes each section's picture and the means of its rows; replaces an earlier report's."""
    for section in sections:
        first = section.runs[0]
        experiment = workdir / first.suite / first.preset / first.experiment
        folder = experiment / "report" / section.name
        for earlier in (folder, experiment / "tensorboard" / section.name):
            shutil.rmtree(earlier, ignore_errors=True)
        board = TensorBoard(folder, first=0)
        last = max(run.steps for run in section.runs)
        picture = (workdir / f"{section.name}.png").read_bytes()
        board.write(last, {section.benchmark.metric: picture})
        for row, point in section.best(section.benchmark.chosen_by):
            found = point.mean(section.benchmark.main)
            if found:
                board.write(point.runs[0].steps, {f"final/{row.name}": found.value})
        board.close()
