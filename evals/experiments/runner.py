"""Plans the runs of an experiment and trains several of them at once.

Every run is an ordinary one, in SUITE/PRESET/EXPERIMENT/ROW/POINT/seedK of the working folder, with
a result in results/ when it is finished. Finished runs are not run again; stopped runs resume.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import jax
from etils import epath

from hyla_lm.checkpoint.checkpoint import check_same_run
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.evals.experiments import results
from hyla_lm.evals.experiments.benchmarks import BENCHMARKS
from hyla_lm.evals.experiments.results import Result
from hyla_lm.evals.experiments.rows import Benchmark, Row
from hyla_lm.evals.populations.train_many import open_member, train_many
from hyla_lm.evals.tables import grouped
from hyla_lm.evals.tasks.generated import GeneratedConfig
from hyla_lm.package import folder

SAVING = "CheckpointConfig."  # settings that change no metric
RUNS_AT_ONCE_ON_CPU = 3
RUNS_AT_ONCE = 24  # three seeds at SRAVEN's eight points


@dataclass(frozen=True)
class Request:
    """The runs asked for; without variants all rows, without steps the whole schedule."""

    suite: str
    workdir: str
    experiment: str = "table_a1"
    preset: str = "paper"
    variants: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    grid: bool = False
    steps: int | None = None
    bindings: tuple[str, ...] = ()
    command: str = ""

    @property
    def gin_file(self) -> str:
        return str(folder("gin") / "evals" / BENCHMARKS[self.suite].presets[self.preset])


class PlannedRun(NamedTuple):
    """One run of a request: its result, which has no summary yet, and where it is trained."""

    result: Result
    bindings: tuple[str, ...]
    folder: Path

    @property
    def is_finished(self) -> bool:
        return (self.folder / "summary.json").is_file()


def train(request: Request, runs_at_once: int | None = None) -> None:
    """Trains the runs that are not finished and writes a result of every run.

    Raises UserError, before anything trains, for a request that cannot be met, and Preempted when
    interrupted, after saving.
    """
    is_cpu = jax.default_backend() == "cpu"
    at_once = runs_at_once or (RUNS_AT_ONCE_ON_CPU if is_cpu else RUNS_AT_ONCE)
    planned = plan(request)
    to_do = populations([run for run in planned if not run.is_finished], at_once)
    finished = sum(run.is_finished for run in planned)
    print(f"{len(planned)} runs, {finished} of them finished; {len(to_do)} populations to train")
    for number, population in enumerate(to_do, start=1):
        names = ", ".join(run.result.name for run in population)
        print(f"population {number} of {len(to_do)}: {names}", flush=True)
        gin_files = [request.gin_file]
        train_many([open_member(gin_files, run.bindings, str(run.folder)) for run in population])
        write_results(request, population)
    write_results(request, planned)


def plan(request: Request) -> list[PlannedRun]:
    """The checked runs of a request; the seeds of a point follow each other."""
    if "://" in request.workdir:
        raise UserError(f"--workdir={request.workdir} must be a folder of a disk.")
    benchmark = BENCHMARKS[request.suite]
    rows = chosen_rows(request, benchmark)
    published = read_experiment([request.gin_file], []).train.steps
    share = (request.steps or published) / published
    grid = benchmark.grid if request.grid else {}
    points = [
        [f"OptimizerConfig.{name} = {value}" for name, value in zip(grid, values, strict=True)]
        for values in product(*grid.values())
    ]
    runs = []
    for row, point, seed in product(rows, points, request.seeds):
        steps = round(published * share * row.setting.schedule)
        bindings = (*row.bindings, *point, f"TrainConfig.steps = {steps}", f"SEED = {seed}")
        _check_bindings(request, benchmark, bindings)
        runs.append(_planned(request, row, seed, share, (*bindings, *request.bindings)))
    return runs


def chosen_rows(request: Request, benchmark: Benchmark) -> list[Row]:
    """The rows whose name or variant is asked for; raises UserError for unknown ones."""
    rows = benchmark.experiments[request.experiment].rows
    known = list(dict.fromkeys([r.variant for r in rows] + [r.name for r in rows]))
    for name in request.variants:
        if name not in known:
            raise UserError(f"--variants={name} is not known: use one of {', '.join(known)}.")
    wanted = request.variants or known
    return [row for row in rows if row.variant in wanted or row.name in wanted]


def populations(runs: Sequence[PlannedRun], at_once: int) -> list[list[PlannedRun]]:
    """Runs that share a compiled program, `at_once` at a time."""
    groups = grouped(runs, lambda run: run.result.row)
    return [
        group[start : start + at_once]
        for group in groups
        for start in range(0, len(group), at_once)
    ]


def write_results(request: Request, runs: Sequence[PlannedRun]) -> None:
    """Writes the results of finished runs, unless results/ has them."""
    folder = Path(request.workdir) / "results"
    for run in runs:
        if not (folder / f"{run.result.name}.json").is_file():
            summary = json.loads((run.folder / "summary.json").read_text())
            results.write(folder, replace(run.result, summary=summary))


def _planned(
    request: Request, row: Row, seed: int, share: float, bindings: tuple[str, ...]
) -> PlannedRun:
    e = read_experiment([request.gin_file], bindings)
    task = e.train.task
    assert isinstance(task, GeneratedConfig)
    task.prepare_task(e.train.batch_size)
    point = {name: getattr(e.optimizer, name) for name in results.SHORT}
    result = Result(
        request.suite,
        request.preset,
        request.experiment,
        row.name,
        seed,
        point,
        task.split,
        e.train.steps,
        share,
        [binding for binding in request.bindings if not binding.startswith(SAVING)],
        request.command,
        {},
    )
    folder = Path(request.workdir) / result.folder
    config = folder / "config.gin"
    if config.is_file():  # a finished run is not opened again, so nothing else would notice
        check_same_run(_settings(config.read_text()), _settings(e.text), epath.Path(folder))
    return PlannedRun(result, bindings, folder)


def _settings(gin: str) -> dict[str, str]:
    """The settings of a run that decide its metrics."""
    lines = (line.partition(" = ") for line in gin.splitlines() if " = " in line)
    return {name: value for name, _, value in lines if not name.startswith(SAVING)}


def _check_bindings(request: Request, benchmark: Benchmark, bindings: Sequence[str]) -> None:
    taken = {binding.split("=")[0].strip() for binding in bindings}
    taken |= {"TrainConfig.task", "TrainConfig.seed", f"{benchmark.task}.seed"}
    for binding in request.bindings:
        name = binding.split("=")[0].strip()
        if name in taken:
            raise UserError(
                f"--gin.{name} sets what the suite, the row, --seeds, --steps or --grid sets: "
                "leave it out."
            )
