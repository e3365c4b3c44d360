"""What was read from latent codes of an experiment's runs, as a table of means over seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from hyla_lm.evals.experiments.results import Section
from hyla_lm.evals.tables import Mean, grouped, markdown, mean_of, shown

FOLDER = "latent_codes"
OF_TABLE = ("step", "decoding", "effective_rank", "code_size")
TITLE = "### Read from latent codes"
MEASURED = {
    "fuzzy_logic": {"AUC": "auc", "F1": "f1", "F1 of always yes": "always_f1"},
    "sraven": {
        "accuracy": "accuracy",
        "majority's accuracy": "majority_accuracy",
        "macro F1": "macro_f1",
        "majority's macro F1": "majority_macro_f1",
    },
}
NOTE = {
    "fuzzy_logic": "Which terms a held-out function has, read by logistic regression from the code "
    "of the last token with itself: times 100, means over terms, from all layers together. "
    "Guessing has an AUC of 50.",
    "sraven": "Which rule a feature of held-out instances follows, read by logistic regression "
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
        return f"{self.result}-{self.codes.replace(' ', '_')}"

    @property
    def codes(self) -> str:
        """Which codes were looked at, in words."""
        if self.result.startswith("sraven"):
            return "last query"
        return f"fixed {self.choices['fixed']}"


def read(folder: Path) -> list[Decoded]:
    """The saved metrics of a folder's runs; empty if none were looked at."""
    paths = sorted((folder / FOLDER).glob("*.json"))
    return [Decoded(**json.loads(path.read_text())) for path in paths]


def text(section: Section, decoded: Sequence[Decoded]) -> list[str]:
    """The lines of a section's table of means over its runs; empty if none were looked at."""
    names = {run.name for run in section.runs}
    here = [one for one in decoded if one.result in names]
    if not here:
        return []
    suite = section.runs[0].suite
    main = next(iter(MEASURED[suite]))
    header = ["", "codes", *MEASURED[suite], f"{main} by layer", f"{main}, in distribution"]
    header += ["effective rank", "seeds"]
    rows = []
    for row, points in section.rows:
        for point in points:
            names = {run.name for run in point.runs}
            of_point = [one for one in here if one.result in names]
            for same in grouped(of_point, lambda one: one.codes):
                rows.append([row.label, same[0].codes, *_cells(suite, same)])
    commands = dict.fromkeys(one.command for one in here)
    table = markdown(header, rows)
    return [TITLE, "", NOTE[suite], "", *table, "", "```", *commands, "```", ""]


def _cells(suite: str, decoded: Sequence[Decoded]) -> list[str]:
    names, found = list(MEASURED[suite].values()), decoded[0].found
    layers = [name for name in found["decoding"]["held_out"] if name != "all"]
    ranks = mean_of(mean(run.found["effective_rank"]["held_out"]) for run in decoded)
    return [
        *(shown(_mean(decoded, "held_out", "all", name)) for name in names),
        ", ".join(shown(_mean(decoded, "held_out", layer, names[0])) for layer in layers),
        shown(_mean(decoded, "in_distribution", "all", names[0])),
        f"{shown(ranks)} of {found['code_size']}",
        str(len(decoded)),
    ]


def _mean(decoded: Sequence[Decoded], set_name: str, layer: str, name: str) -> Mean | None:
    scores = [run.found["decoding"][set_name][layer] for run in decoded]
    values = [score.get("mean", score).get(name) for score in scores]
    return mean_of(None if value is None else 100 * value for value in values)
