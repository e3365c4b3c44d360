"""The report of a run's latent codes: decoding, ranks, dead units and pictures."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hyla_lm.evals.latent_codes import figures
from hyla_lm.evals.latent_codes.decoding import (
    by_layer,
    dead_units,
    decode_rule,
    decode_terms,
    effective_rank,
)
from hyla_lm.evals.latent_codes.samples import Choices, CodeSample, Collector, any_active
from hyla_lm.evals.populations.population import generated_task
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogicTask
from hyla_lm.evals.tasks.sraven_rules import RULES
from hyla_lm.run.restored import RestoredRun
from hyla_lm.storage import written_aside

KNOWN_SETS = ("in_distribution", "held_out")
Report = dict[str, Any]


def report(run: RestoredRun, choices: Choices, out: Path) -> Report:
    """The metrics of a fuzzy-logic or SRAVEN run; writes codes and pictures to `out`.

    Classifiers are fit on codes of training tasks and tested on other examples of all sets. The
    tSNE picture is of the held-out tasks.
    """
    task = generated_task(run.program)
    is_fuzzy = isinstance(task, FuzzyLogicTask)
    collector = Collector(run.program.model, run.params, task, choices)
    train = collector.collect("in_distribution", "latent codes to fit on")
    tests = {
        name: collector.collect(name, "latent codes to test on") for name in task.evaluation_names()
    }
    samples = {"decoder_training": train, **tests}
    write_npz(
        out / "codes.npz",
        {
            f"{name}/{key}": values
            for name, sample in samples.items()
            for key, values in {"code_NxBxC": sample.code_NxBxC, **sample.labels}.items()
        },
    )
    # No training task has an unknown term, so the set of those is not decoded.
    known = {name: sample for name, sample in tests.items() if name in KNOWN_SETS}
    decoding = _decoding(train, known, is_fuzzy)
    figures.draw_decoding(out / "decoding.png", decoding)
    held_out = tests["held_out"]
    colours = _colours(held_out, is_fuzzy)
    figures.draw_tsne(out / "tsne.png", held_out.code_NxBxC, colours, choices.seed)
    return {
        "task": "fuzzy logic" if is_fuzzy else "SRAVEN",
        "attention": list(run.program.experiment.model.pattern),
        "choices": asdict(choices),
        "decoding": decoding,
        "effective_rank": {
            name: [effective_rank(code) for code in sample.code_NxBxC]
            for name, sample in tests.items()
        },
        "code_size": held_out.code_NxBxC.shape[-1],
        "value_units": value_units([sample.active for sample in samples.values()]),
    }


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a compressed file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]


def value_units(active: list[list[np.ndarray | None]]) -> list[dict[str, float | int] | None]:
    """Dead value units of each layer over all samples; None for a layer without a ReLU."""
    return [dead_units(units) for units in any_active(active)]


def _decoding(train: CodeSample, tests: Mapping[str, CodeSample], is_fuzzy: bool) -> Report:
    """Scores of terms or of rules, by set and layer."""
    codes = {name: by_layer(sample.code_NxBxC) for name, sample in tests.items()}
    label = "terms" if is_fuzzy else "rule"
    parts = np.unique(np.concatenate([sample.labels[label] for sample in tests.values()])).tolist()
    decoding: Report = {name: {} for name in tests}
    for layer, code in by_layer(train.code_NxBxC).items():
        fit = (code, train.labels[label])
        pairs = {name: (codes[name][layer], tests[name].labels[label]) for name in tests}
        scores = decode_terms(fit, pairs, parts) if is_fuzzy else decode_rule(fit, pairs)
        for name, of_set in scores.items():
            decoding[name][layer] = of_set
    return decoding


def _colours(sample: CodeSample, is_fuzzy: bool) -> figures.Colours:
    """The colours of points by label: numbers, or indices of named classes."""
    target = {"target": (sample.labels["target"], None)}
    values = sample.labels["terms" if is_fuzzy else "rule"]
    classes, class_B = np.unique(values, axis=0, return_inverse=True)
    names = ["+".join(map(str, c)) if is_fuzzy else RULES[c] for c in classes.tolist()]
    return {**target, "function" if is_fuzzy else "rule": (class_B.ravel(), names)}


def lines(report: Report) -> Iterator[str]:
    """The lines of the table to print."""
    yield f"{report['task']}, {' + '.join(report['attention'])}, step {report['step']}"
    for name, layers in report.get("decoding", {}).items():
        yield from _decoding_lines(name, layers)
    for name, ranks in report["effective_rank"].items():
        shown = "  ".join(f"{rank:.2f}" for rank in ranks)
        yield f"effective rank of codes of size {report['code_size']}, {name}: {shown}"
    for layer, units in enumerate(report["value_units"]):
        dead = f"{units['dead']} of {units['units']} dead" if units else "no ReLU, so none can die"
        yield f"value units of layer {layer}: {dead}"


def _decoding_lines(name: str, layers: Mapping[str, Any]) -> Iterator[str]:
    means = {layer: scores.get("mean", scores) for layer, scores in layers.items()}
    columns = [name for name, value in means["0"].items() if isinstance(value, float)]
    what = "rules" if "accuracy" in columns else "terms, mean"
    yield f"{name + ': ' + what:<28}" + "".join(f"{column:>19}" for column in columns)
    for layer, of_layer in means.items():
        yield f"  layer {layer:<20}" + "".join(f"{of_layer[column]:>19.3f}" for column in columns)
