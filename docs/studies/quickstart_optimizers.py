"""Compares optimizers and schedules on the quickstart.

    python -m docs.studies.quickstart_optimizers --workdir=runs/optimizers --output=FOLDER

Each pair of optimizer and schedule is tuned alike: one run of seed 0 at each learning rate. The
best rate is trained with two more seeds. A run is a line of FOLDER/runs.jsonl; runs that have one
are not trained again. With --time steps are timed instead, with --page=docs/choices.md the
tables of that page are written.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.studies.records import step_milliseconds
from hyla_lm import ending
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.evals.tables import markdown
from hyla_lm.run.program import make_program
from hyla_lm.storage import write_whole
from hyla_lm.tools.compare.intervals import welch

GIN = "gin/quickstart.gin"
RATES = (2.5e-3, 5e-3, 1e-2, 2e-2)
STEPS = 2600
SEEDS = (0, 1, 2)
# The two that one would choose between first, then the other corners.
PAIRS = (("adamw", "cosine"), ("muon", "wsd"), ("muon", "cosine"), ("adamw", "wsd"))
DIFFERENCES = (
    (("muon", "cosine"), ("adamw", "cosine")),
    (("muon", "wsd"), ("adamw", "wsd")),
    (("adamw", "wsd"), ("adamw", "cosine")),
    (("muon", "wsd"), ("muon", "cosine")),
)
NAMES = {"adamw": "AdamW", "muon": "Muon", "cosine": "cosine", "wsd": "wsd"}
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


def tables(output: Path) -> list[str]:
    """The runs at the best rates, their differences and the step times as Markdown."""
    lines, rows, values = lines_of(output), [], {}
    for pair in PAIRS:
        found, rate = bits(lines, *pair), best_rate(lines, *pair)
        values[pair] = [found[rate, seed] for seed in SEEDS]
        of_seeds = ", ".join(f"{x:.3f}" for x in values[pair])
        mean = f"**{statistics.mean(values[pair]):.3f}**"
        rows.append([title(pair), f"{rate:g}", of_seeds, mean])
    of_runs = markdown(["", "learning rate", "seeds 0, 1, 2", "mean"], rows)
    rows = []
    for pair, other in DIFFERENCES:
        value = statistics.mean(values[pair]) - statistics.mean(values[other])
        interval = welch(values[pair], values[other])
        assert interval is not None
        limits = f"{interval.low:+.3f} to {interval.high:+.3f}"
        rows.append([f"{title(pair)} minus {title(other)}", f"{value:+.3f}", limits])
    of_pairs = markdown(["", "difference", "95 % interval"], rows)
    steps = json.loads((output / "step_time.json").read_text())
    times = steps["processor_milliseconds"]
    of_step = (
        f"A step takes {times['muon']} ms of CPU time with Muon and {times['adamw']} ms "
        f"with AdamW: {steps['ratio']} times as much."
    )
    return ["\n".join(of_runs), "\n".join(of_pairs), of_step]


def title(pair: tuple[str, str]) -> str:
    return " + ".join(NAMES[part] for part in pair)


def with_tables(page: str, output: Path) -> str:
    """The page with the tables of the results between its two marks."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise UserError(f"--page has no {BEGIN} and {END}: give docs/choices.md.")
    return "\n\n".join([before + mark, *tables(output), end + after])


def timed() -> str:
    """Milliseconds of the processor for a step of each optimizer, and their ratio."""
    times = step_milliseconds(
        {
            name: make_program(read_experiment([GIN], [f"OptimizerConfig.optimizer = '{name}'"]))
            for name in ("adamw", "muon")
        }
    )
    ratio = round(times["muon"] / times["adamw"], 2)
    return json.dumps({"processor_milliseconds": times, "ratio": ratio}, indent=1) + "\n"


if __name__ == "__main__":
    ending.process(main)
