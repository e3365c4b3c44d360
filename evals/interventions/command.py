"""Changes the latent codes of trained fuzzy-logic runs: hyla-lm evals interventions RUN... --out=F.

Writes one JSON a run to F/results, and F/report.md.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hyla_lm.evals.latent_codes.command import count
from hyla_lm.evals.tables import write_json

HELP = "run trained models with other latent codes than their own"
RESULTS = "results"


@dataclass(frozen=True)
class Changed:
    """What the interventions on one run left."""

    attention: str
    seed: int
    step: int
    steps: int
    examples: int
    command: str
    found: dict[str, dict[str, float]]

    @property
    def name(self) -> str:
        return f"{self.attention}-seed{self.seed}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="folder of a fuzzy-logic run with checkpoints")
    add("--out", type=Path, required=True, help="folder of results and report")
    add("--examples", type=count, default=2048, help="held-out examples (default 2048)")
    add("--seed", type=int, default=0, help="seed of donors and of other points")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    """Measures every run that has no result yet, then writes the report."""
    from hyla_lm.evals.interventions.measure import Subject, measure
    from hyla_lm.evals.interventions.report import write_report
    from hyla_lm.parallel.mesh import all_devices
    from hyla_lm.run.restored import open_run

    for workdir in options.runs:
        restored = open_run(workdir, None, (), bindings, all_devices()[:1])
        experiment = restored.program.experiment
        empty = Changed(
            "_".join(dict.fromkeys(experiment.model.pattern)),
            experiment.train.seed,
            restored.step,
            experiment.train.steps,
            options.examples,
            options.command,
            {},
        )
        path = options.out / RESULTS / f"{empty.name}.json"
        if path.is_file():
            print(f"{path} is there, so this run is not measured again", flush=True)
            continue
        print(empty.name, flush=True)
        found = measure(Subject(restored, options.seed), options.examples)
        write_json(path, {**asdict(empty), "found": found}, digits=5)
    write_report(options.out, read(options.out))
    print(options.out / "report.md")


def read(folder: Path) -> list[Changed]:
    """The results of a folder."""
    paths = sorted((folder / RESULTS).glob("*.json"))
    return [Changed(**json.loads(path.read_text())) for path in paths]
