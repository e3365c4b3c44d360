"""Trains the language models of docs/records.md.

    python -m docs.studies.records --rows=runs/records/rows --workdir=runs/records/runs

For each size: the step of each method is timed, each learning rate is tried on a schedule of half
the length, and the best one trains three seeds. A run is a file of docs/results/records; what has
its file is not done again, and a run that was cut off is trained anew. With --methods the
attentions of OVER_SOFTMAX_KEYS are trained in the same way.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hyla_lm import ending
from hyla_lm.cli.huge_pages import start_with_huge_pages
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import Program, make_program
from hyla_lm.storage import write_whole
from hyla_lm.tools.compare.budget import LN2
from hyla_lm.tools.compare.runs import ReadRun, read_run

RESULTS = Path(__file__).parents[1] / "results" / "records"
SIZES = ("270k", "500k", "1m", "2m")
METHODS = {
    "softmax": "'softmax'",
    "linear": "'linear'",
    "hyla": "'hyla'",
    "hybrid": "('softmax', 'hyla')",
}
# What docs.studies.experiments_page compares with softmax; PHI changes the activation of two.
OVER_SOFTMAX_KEYS = {
    "talking_heads": "'talking_heads'",
    "query_composed": "'query_composed'",
    "hyla_softmax_no_rms_head": "'hyla_softmax_no_rms_head'",
    "hyla_softmax": "'hyla_softmax'",
    "hyla_gated": "'hyla_gated'",
    "hyla_softmax_no_rms_head_silu": "'hyla_softmax_no_rms_head'",
    "hyla_softmax_no_rms_head_identity": "'hyla_softmax_no_rms_head'",
}
ATTENTIONS = {**METHODS, **OVER_SOFTMAX_KEYS}
PHI = {
    "hyla_softmax_no_rms_head_silu": "silu",
    "hyla_softmax_no_rms_head_identity": "identity",
}
RATES = (2.5e-3, 6e-3, 1.5e-2, 3.75e-2)
STEPS, TUNING_STEPS = 1280, 640
SEEDS, TUNING_SEED = (0, 1, 2), 100
NOT_FINITE = "not finite"
CPUS = Path("/proc/cpuinfo")
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """One run: which model, learning rate, steps and seed."""

    size: str
    method: str
    learning_rate: float
    steps: int
    seed: int

    @property
    def name(self) -> str:
        kind = f"rate{self.learning_rate:g}" if self.is_tuning else f"seed{self.seed}"
        return f"{self.size}_{self.method}_{kind}"

    @property
    def is_tuning(self) -> bool:
        return self.seed == TUNING_SEED

    @property
    def bindings(self) -> list[str]:
        phi = PHI.get(self.method)
        return [
            f"ModelConfig.attention = {ATTENTIONS[self.method]}",
            *([f"ModelConfig.value_activation = {phi!r}"] if phi else []),
            f"OptimizerConfig.learning_rate = {self.learning_rate}",
            f"TrainConfig.steps = {self.steps}",
            f"TrainConfig.seed = {self.seed}",
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what is missing and returns a status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser("records", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="rows of records_corpus.py")
    parser.add_argument("--workdir", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="names of gin/records/*.gin")
    parser.add_argument("--methods", nargs="+", default=tuple(METHODS), choices=ATTENTIONS)
    options = parser.parse_args(arguments)

    def study() -> None:
        for size in options.sizes:
            train_size(size, options.methods, options.rows, options.workdir)

    return ending.run("records", study)


def train_size(size: str, methods: Sequence[str], rows: Path, workdir: Path) -> None:
    """Times the steps of a size, tunes, and trains all seeds of a method before none of another."""
    times = RESULTS / f"{size}_step_time.json"
    if not times.exists():
        keep(times, timed(size, rows))
    for rate in RATES:
        for method in methods:
            train(Setting(size, method, rate, TUNING_STEPS, TUNING_SEED), rows, workdir)
    best = {method: best_rate(read_all(), size, method) for method in methods}
    for seed in SEEDS:
        for method in methods:
            train(Setting(size, method, best[method], STEPS, seed), rows, workdir)


def result_path(setting: Setting) -> Path:
    return RESULTS / "runs" / f"{setting.name}.json"


def best_rate(results: Sequence[Result], size: str, method: str) -> float:
    """The learning rate of the best tuning run; raises UserError where all went wrong."""
    tuned = {r["learning_rate"]: r["bits_per_byte"] for r in tuning_of(results, size, method)}
    sound = {rate: bits for rate, bits in tuned.items() if bits is not None}
    if not sound:
        raise UserError(f"no learning rate trains {method} of {size}: lower RATES.")
    return min(sound, key=sound.__getitem__)


def tuning_of(results: Sequence[Result], size: str, method: str) -> list[Result]:
    return [r for r in of_method(results, size, method) if r["seed"] == TUNING_SEED]


def of_method(results: Sequence[Result], size: str, method: str) -> list[Result]:
    return [r for r in results if (r["size"], r["method"]) == (size, method)]


def read_all(folder: Path = RESULTS) -> list[Result]:
    """The runs that ended, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*.json"))]


def train(setting: Setting, rows: Path, workdir: Path) -> None:
    """Trains a run unless it has its file; one whose numbers went wrong has no bits per byte."""
    path, folder = result_path(setting), workdir / setting.name
    if path.exists():
        return
    costs = train_anew(setting, rows, folder)
    is_sound = costs.pop("is_sound")
    found = measured(folder, setting) if is_sound else {"bits_per_byte": None}
    keep(path, {**vars(setting), **costs, **found})
    print(path.name, found["bits_per_byte"], flush=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def train_anew(setting: Setting, rows: Path, folder: Path) -> dict[str, Any]:
    """Trains a run in an empty folder; returns its costs and whether its numbers stayed finite."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    given = [f"--gin.{one}" for one in (*setting.bindings, f'ROWS = "{rows.absolute()}"')]
    command = [
        sys.executable,
        "-m",
        "hyla_lm",
        "train",
        f"--gin_file=gin/records/{setting.size}.gin",
    ]
    started = time.monotonic()
    with open(f"{folder}.txt", "w") as log:
        process = subprocess.Popen(
            [*command, f"--workdir={folder}", *given], stdout=log, stderr=log
        )
        _, status, used = os.wait4(process.pid, 0)
    if status and NOT_FINITE not in Path(f"{folder}.txt").read_text():
        raise UserError(f"{setting.name} did not train: see {folder}.txt.")
    return {
        "is_sound": status == 0,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "wall_seconds": round(time.monotonic() - started, 1),
        "memory_gb": round(used.ru_maxrss * 1024 / 1e9, 3),
        "machine": machine(),
    }


def measured(folder: Path, setting: Setting) -> dict[str, Any]:
    """What a run's folder tells: parameters, FLOPs, its curve, and the loss of each document."""
    run, summary = read_run(str(folder)), json.loads((folder / "summary.json").read_text())
    (last,) = run.evaluations[-1].sets.values()
    bits = last.nats_N / LN2
    found = {
        "bits_per_byte": round(float(bits.sum() / last.bytes_N.sum()), 5),
        "parameters": summary["num_params"],
        "flops_per_token": run.facts["flops_per_token"],
        "tokens_per_step": run.facts["tokens_per_step"],
        "identity": run.facts["identity"],
        "environment": run.facts["environment"],
        "curve": curve(run),
    }
    if setting.is_tuning:
        return found
    return found | {"bytes": np.round(last.bytes_N, 1).tolist(), "bits": np.round(bits, 1).tolist()}


def curve(run: ReadRun) -> list[list[float]]:
    """Step and bits per byte of each evaluation."""
    points = []
    for evaluation in run.evaluations:
        (one,) = evaluation.sets.values()
        points.append(
            [evaluation.step, round(float(one.nats_N.sum() / LN2 / one.bytes_N.sum()), 5)]
        )
    return points


def timed(size: str, rows: Path) -> dict[str, Any]:
    """Milliseconds of the processor for a step of each method."""
    programs = {}
    for method in METHODS:
        bindings = Setting(size, method, RATES[0], STEPS, SEEDS[0]).bindings
        given = [*bindings, f'ROWS = "{rows.absolute()}"']
        programs[method] = make_program(read_experiment([f"gin/records/{size}.gin"], given))
    return {"cpu_milliseconds": step_milliseconds(programs), "machine": machine()}


def step_milliseconds(
    programs: Mapping[str, Program], rounds: int = 15, steps: int = 4
) -> dict[str, float]:
    """Milliseconds of the processor for a step of each program, the median of rounds in turn."""
    states, batches, found = {}, {}, {}
    for name, program in programs.items():
        train = program.experiment.train
        stream = program.task.train_stream(BatchShard(train.batch_size, 0), None)
        batches[name], found[name] = program.to_devices(next(stream)), []
        states[name], _ = program.train_step(program.init(), batches[name])  # compiles
    for _ in range(rounds):
        for name, program in programs.items():
            started = time.process_time()
            for _ in range(steps):
                states[name], _ = program.train_step(states[name], batches[name])
            jax.block_until_ready(states[name])
            found[name].append(1000 * (time.process_time() - started) / steps)
    return {name: round(statistics.median(times), 1) for name, times in found.items()}


def machine() -> str:
    """The kind of processor, and how many cores of it this process may use."""
    lines = CPUS.read_text().splitlines() if CPUS.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else 'CPU'}, {cores} core{'s' if cores > 1 else ''}"


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Writes a result, a field a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = ",\n".join(f" {json.dumps(name)}: {json.dumps(found[name])}" for name in found)
    write_whole(path, f"{{\n{fields}\n}}\n".encode())


if __name__ == "__main__":
    start_with_huge_pages(trains=True)  # so that the timed steps have the memory of a run's steps
    ending.process(main)
