"""Compares optimizers and schedules on the quickstart.

    python docs/studies/quickstart_optimizers.py --workdir=runs/optimizers --output=FOLDER

Each pair of optimizer and schedule is tuned alike: one run of seed 0 at each learning rate. The
best rate is trained with two more seeds. A run is a line of FOLDER/runs.jsonl; runs that have one
are not trained again. With --time steps are timed instead, with --page=docs/optimizers.md the
tables of that page are written.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from hyla_lm import ending
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import Program, make_program
from hyla_lm.storage import write_whole

GIN = "gin/quickstart.gin"
RATES = (2.5e-3, 5e-3, 1e-2, 2e-2)
STEPS = 2600
SEEDS = (0, 1, 2)
# The two that one would choose between first, then the other corners.
PAIRS = (("adamw", "cosine"), ("muon", "wsd"), ("muon", "cosine"), ("adamw", "wsd"))
NAMES = {"adamw": "AdamW", "muon": "Muon", "cosine": "cosine", "wsd": "warmup-stable-decay"}
SETTINGS = ("optimizer", "schedule", "learning_rate", "steps", "seed")
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
Line = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the study and returns its status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser("quickstart_optimizers", description=__doc__)
    parser.add_argument("--workdir", type=Path, help="folder for the runs")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--page", type=Path, help="page whose tables are written")
    parser.add_argument("--time", action="store_true", help="time a step of each optimizer")
    options = parser.parse_args(arguments)

    def study() -> None:
        if options.page is not None:
            write_whole(
                options.page, with_tables(options.page.read_text(), options.output).encode()
            )
        elif options.time:
            write_whole(options.output / "step_time.json", timed().encode())
        elif options.workdir is None:
            raise UserError("--workdir is missing: give a folder for the runs.")
        else:
            train_all(options.workdir, options.output)

    return ending.run("quickstart_optimizers", study)


def train_all(workdir: Path, output: Path) -> None:
    """Trains what has no line yet: for each two pairs all rates, then the best with more seeds."""
    for pairs in (PAIRS[:2], PAIRS[2:]):
        for rate in RATES:
            for pair in pairs:
                train(workdir, output, *pair, rate, STEPS, SEEDS[0])
        best = {pair: best_rate(lines_of(output), *pair) for pair in pairs}
        for seed in SEEDS[1:]:
            for pair in pairs:
                train(workdir, output, *pair, best[pair], STEPS, seed)


def train(workdir: Path, output: Path, *setting: Any) -> None:
    """Trains one run and adds its line; a run whose numbers went wrong has no bits."""
    run = dict(zip(SETTINGS, setting, strict=True))
    if any(all(line[name] == run[name] for name in SETTINGS) for line in lines_of(output)):
        return
    folder = workdir / "_".join(map(str, setting))
    bindings = [
        *(f"OptimizerConfig.{name}='{run[name]}'" for name in ("optimizer", "schedule")),
        f"OptimizerConfig.learning_rate={run['learning_rate']}",
        *(f"TrainConfig.{name}={run[name]}" for name in ("steps", "seed")),
    ]
    command = [sys.executable, "-m", "hyla_lm", "train", f"--gin_file={GIN}"]
    command += [f"--workdir={folder}", *(f"--gin.{binding}" for binding in bindings)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode and "not finite" not in done.stderr:
        raise UserError(f"{folder} did not train ({done.stderr.strip()[-300:]}): mend it.")
    summary = {} if done.returncode else json.loads((folder / "summary.json").read_text())
    bits = summary.get("validation", {}).get("bits_per_byte")
    output.mkdir(parents=True, exist_ok=True)
    with (output / "runs.jsonl").open("a") as file:
        file.write(json.dumps({**run, "bits_per_byte": bits and round(bits, 4)}) + "\n")
    shutil.rmtree(folder)


def lines_of(output: Path) -> list[Line]:
    path = output / "runs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def bits(lines: Sequence[Line], optimizer: str, schedule: str) -> dict[Any, float]:
    """Bits per byte of a pair by learning rate and seed; infinite where numbers went wrong."""
    return {
        (line["learning_rate"], line["seed"]): line["bits_per_byte"] or float("inf")
        for line in lines
        if (line["optimizer"], line["schedule"]) == (optimizer, schedule)
    }


def best_rate(lines: Sequence[Line], optimizer: str, schedule: str) -> float:
    """That of the best run of the first seed."""
    of_seed = {rate: x for (rate, seed), x in bits(lines, optimizer, schedule).items() if not seed}
    return min(of_seed, key=of_seed.__getitem__)


def tables(output: Path) -> tuple[str, str, str]:
    """The runs of all rates, those of the best one and the step times as Markdown."""
    lines = lines_of(output)
    tuning = [["", *(f"{rate:g}" for rate in RATES)]]
    chosen = [["", "learning rate", *(f"seed {seed}" for seed in SEEDS), "mean", "spread"]]
    for pair in PAIRS:
        found = bits(lines, *pair)
        if len(found) < len(RATES) + len(SEEDS) - 1:
            continue
        name, rate = " + ".join(NAMES[part] for part in pair), best_rate(lines, *pair)
        of_seeds = [found[rate, seed] for seed in SEEDS]
        tuning.append([name, *(f"{found[one, SEEDS[0]]:.3f}" for one in RATES)])
        spread = f"{max(of_seeds) - min(of_seeds):.3f}"
        means = [*(f"{x:.3f}" for x in of_seeds), f"**{statistics.mean(of_seeds):.3f}**", spread]
        chosen.append([name, f"{rate:g}", *means])
    return markdown(tuning), markdown(chosen), step_time(output)


def with_tables(page: str, output: Path) -> str:
    """The page with the tables of the results between its two marks."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise UserError(f"--page has no {BEGIN} and {END}: give docs/optimizers.md.")
    return "\n\n".join([before + mark, *tables(output), end + after])


def step_time(output: Path) -> str:
    """The step times as Markdown."""
    found = json.loads((output / "step_time.json").read_text())
    times = found["processor_milliseconds"]
    rows = [["", "AdamW", "Muon", "ratio"]]
    rows.append(["ms of processor a step", *map(str, times.values()), f"**{found['ratio']}**"])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(rows[0]) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])


def timed(rounds: int = 15, steps: int = 10) -> str:
    """Milliseconds of the processor for a step of each optimizer, the median of rounds in turn."""
    programs = {name: ready(name) for name in ("adamw", "muon")}
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, (program, state, batch) in programs.items():
            started = time.process_time()
            for _ in range(steps):
                state, _ = program.train_step(state, batch)
            jax.block_until_ready(state)
            programs[name] = (program, state, batch)
            found[name].append(1000 * (time.process_time() - started) / steps)
    medians = {name: round(statistics.median(times), 1) for name, times in found.items()}
    ratio = round(statistics.median(m / a for a, m in zip(*found.values(), strict=True)), 2)
    return json.dumps({"processor_milliseconds": medians, "ratio": ratio}, indent=1) + "\n"


def ready(optimizer: str) -> tuple[Program, Any, Any]:
    """A program with its state after the first step, so that it is compiled, and a batch."""
    program = make_program(read_experiment([GIN], [f"OptimizerConfig.optimizer = '{optimizer}'"]))
    train = program.experiment.train
    batch = program.to_devices(
        next(program.task.train_stream(BatchShard(train.batch_size, 0), None))
    )
    state, _ = program.train_step(program.init(), batch)
    return program, state, batch


if __name__ == "__main__":
    ending.process(main)
