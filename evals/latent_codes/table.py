"""The latent codes of an experiment's finished runs: hyla-lm evals latent_codes FOLDER.

Writes one JSON for each run, and makes the report's table of means over seeds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.evals.experiments import results
from hyla_lm.evals.experiments.means import Mean, markdown, mean_of, shown, write_json
from hyla_lm.evals.experiments.results import Section
from hyla_lm.evals.latent_codes.samples import Choices

FOLDER = "latent_codes"
OF_TABLE = ("step", "decoding", "effective_rank", "code_size", "value_units")
TITLE = "### Read from latent codes"
MEASURED = {
    "fuzzy_logic": (
        ("AUC", "auc"),
        ("F1", "f1"),
        ("majority's F1", "majority_f1"),
        ("F1 of always yes", "always_f1"),
    ),
    "sraven": (
        ("accuracy", "accuracy"),
        ("majority's accuracy", "majority_accuracy"),
        ("macro F1", "macro_f1"),
        ("majority's macro F1", "majority_macro_f1"),
    ),
}
NOTE = {
    "fuzzy_logic": "Which terms a held-out function has, told by logistic regression from the code "
    "of the last token with itself: times 100, means over terms, from all layers together. "
    "Guessing has an AUC of 50.",
    "sraven": "Which rule a feature of held-out instances follows, told by logistic regression "
    "from the code of the last query: times 100, from all layers together.",
}


@dataclass(frozen=True)
class Decoded:
    """The metrics of a run's latent codes; `result` is the name of the run's result."""

    result: str
    choices: Mapping[str, Any]
    command: str
    found: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.result}-{self.codes.replace(', ', '_').replace(' ', '_')}"

    @property
    def codes(self) -> str:
        """Which codes were looked at, in words."""
        if self.result.startswith("sraven"):
            return f"{self.choices['site']}, order {self.choices['order']}"
        return f"fixed {self.choices['fixed']}"


def look_at_all(folder: Path, choices: Choices, tsne_examples: int, command: str) -> None:
    """Looks at every run that has a result, unless it was looked at with these choices before.

    Runs that diverged are left out. Raises UserError if a run's folder is gone.
    """
    from hyla_lm.evals.latent_codes.look import look_at

    finished = results.read(folder / "results")
    for result in [result for result in finished if result.summary.get("diverged_at") is None]:
        decoded = Decoded(result.name, asdict(choices), command, {})
        path = folder / FOLDER / f"{decoded.name}.json"
        if path.is_file() and json.loads(path.read_text())["choices"] == decoded.choices:
            continue
        workdir = folder / result.folder
        if not workdir.is_dir():
            raise UserError(f"{workdir} is gone: latent codes need the checkpoints of the runs.")
        print(path.stem, flush=True)
        out = workdir / FOLDER / path.stem.removeprefix(f"{result.name}-")
        report = look_at(str(workdir), None, choices, tsne_examples, out)
        of_table = {name: report[name] for name in OF_TABLE}
        write_json(path, asdict(replace(decoded, found=of_table)), digits=6)


def read(folder: Path) -> list[Decoded]:
    """The saved metrics of a folder's runs; empty if none were looked at."""
    paths = sorted((folder / FOLDER).glob("*.json"))
    return [Decoded(**json.loads(path.read_text())) for path in paths]


def text(section: Section, decoded: Sequence[Decoded]) -> list[str]:
    """The lines of a section's table of means over its runs; empty if none were looked at."""
    runs = {run.name: run for run in section.runs}
    here = [one for one in decoded if one.result in runs]
    if not here:
        return []
    suite = section.runs[0].suite
    measured, header = MEASURED[suite][0][0], ["", "codes"]
    header += [title for title, _ in MEASURED[suite]]
    header += [f"{measured} by layer", f"{measured}, in distribution", "effective rank"]
    header += ["dead value units, %", "seeds"]
    rows = []
    for row, points in section.rows:
        for point in points:
            of_point = [one for one in here if runs[one.result] in point.runs]
            for codes in dict.fromkeys(one.codes for one in of_point):
                cells = _cells(suite, [one for one in of_point if one.codes == codes])
                rows.append([row.label, codes, *cells])
    commands = dict.fromkeys(one.command for one in here)
    table = markdown(header, rows)
    return [TITLE, "", NOTE[suite], "", *table, "", "```", *commands, "```", ""]


def _cells(suite: str, decoded: Sequence[Decoded]) -> list[str]:
    main = MEASURED[suite][0][1]
    layers = [name for name in decoded[0].found["decoding"]["held_out"] if name != "all"]
    ranks = [mean(run.found["effective_rank"]["held_out"]) for run in decoded]
    return [
        *(shown(_mean(decoded, "held_out", "all", path)) for _, path in MEASURED[suite]),
        ", ".join(shown(_mean(decoded, "held_out", layer, main)) for layer in layers),
        shown(_mean(decoded, "in_distribution", "all", main)),
        f"{shown(mean_of(ranks))} of {decoded[0].found['code_size']}",
        shown(mean_of([share for run in decoded for share in _dead_percent(run)])),
        str(len(decoded)),
    ]


def _dead_percent(run: Decoded) -> list[float]:
    """The percentage of a run's value units that are dead; empty without a ReLU."""
    layers = [layer for layer in run.found["value_units"] if layer]
    units = sum(layer["units"] for layer in layers)
    return [100 * sum(layer["dead"] for layer in layers) / units] if layers else []


def _mean(decoded: Sequence[Decoded], set_name: str, layer: str, path: str) -> Mean | None:
    scores = [run.found["decoding"][set_name][layer] for run in decoded]
    values = [score.get("mean", score).get(path) for score in scores]
    return mean_of([100 * value for value in values if value is not None])
