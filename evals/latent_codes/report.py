"""The report of a run's latent codes: decoding, ranks, dead units, means and pictures."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hyla_lm.evals.latent_codes import figures as latent_figures
from hyla_lm.evals.latent_codes.decoding import (
    about_their_mean,
    by_layer,
    cosine_similarity,
    dead_units,
    decode_rule,
    decode_terms,
    effective_rank,
    mean_codes,
)
from hyla_lm.evals.latent_codes.samples import Choices, CodeSample, Collector, any_active
from hyla_lm.evals.populations.population import generated_task
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogicTask
from hyla_lm.evals.tasks.sraven_rules import RULES
from hyla_lm.run.restored import RestoredRun
from hyla_lm.storage import written_aside

KNOWN_SETS = ("in_distribution", "held_out")
Report = dict[str, Any]


def report(run: RestoredRun, choices: Choices, tsne_examples: int, out: Path) -> Report:
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
    save_codes(out / "codes.npz", {"decoder_training": train, **tests})
    decoding = (_terms if is_fuzzy else _rules)(train, tests)
    held_out = tests["held_out"]
    groups, similarity = _similarity(tests, is_fuzzy)
    latent_figures.draw_decoding(out / "decoding.png", decoding)
    latent_figures.draw_similarity(out / "similarity.png", groups, similarity)
    colours = _colours(held_out, is_fuzzy)
    latent_figures.draw_tsne(
        out / "tsne.png", held_out.code_NxBxC[:, :tsne_examples], colours, choices.seed
    )
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
        "value_units": value_units([train, *tests.values()]),
        "groups": groups,
        "similarity": {
            name: [layer.round(6).tolist() for layer in layers]
            for name, layers in similarity.items()
        },
    }


def save_codes(path: Path, samples: Mapping[str, CodeSample]) -> None:
    """Writes SET/code_NxBxC and SET/LABEL of every set."""
    arrays = {
        f"{name}/{key}": values
        for name, sample in samples.items()
        for key, values in {"code_NxBxC": sample.code_NxBxC, **sample.labels}.items()
    }
    write_npz(path, arrays)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a compressed file that appears whole."""
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]


def value_units(samples: list[CodeSample]) -> list[dict[str, float | int] | None]:
    """Dead value units of each layer over all samples; None for a layer without a ReLU."""
    return [dead_units(active) for active in any_active([sample.active for sample in samples])]


def _terms(train: CodeSample, tests: Mapping[str, CodeSample]) -> Report:
    """F1 by set, layer and term; no training task has an unknown term, so none is decoded."""
    codes = {name: by_layer(tests[name].code_NxBxC) for name in KNOWN_SETS}
    terms = {name: tests[name].labels["terms"] for name in KNOWN_SETS}
    parts = np.unique(np.concatenate(list(terms.values()))).tolist()
    decoding: Report = {name: {} for name in KNOWN_SETS}
    for layer, code in by_layer(train.code_NxBxC).items():
        pairs = {name: (codes[name][layer], terms[name]) for name in KNOWN_SETS}
        for name, scores in decode_terms((code, train.labels["terms"]), pairs, parts).items():
            decoding[name][layer] = scores
    return decoding


def _rules(train: CodeSample, tests: Mapping[str, CodeSample]) -> Report:
    """Accuracy and F1 by set, layer and rule."""
    codes = {name: by_layer(sample.code_NxBxC) for name, sample in tests.items()}
    decoding: Report = {name: {} for name in tests}
    for layer, code in by_layer(train.code_NxBxC).items():
        pairs = {name: (codes[name][layer], tests[name].labels["rule"]) for name in tests}
        scores = decode_rule((code, train.labels["rule"]), pairs, len(RULES))
        for name, of_set in scores.items():
            decoding[name][layer] = of_set
    return decoding


def _similarity(
    tests: Mapping[str, CodeSample], is_fuzzy: bool
) -> tuple[list[str], dict[str, list[np.ndarray]]]:
    """Names of groups (terms or rules) and the similarity of their mean codes in each layer.

    Group means are nearly equal, so they are also compared after the overall mean is subtracted.
    """
    label = "terms" if is_fuzzy else "rule"
    group_B = np.concatenate([tests[name].labels[label] for name in KNOWN_SETS])
    code_NxBxC = np.concatenate([tests[name].code_NxBxC for name in KNOWN_SETS], axis=1)
    of_layers = [mean_codes(code_BxC, group_B) for code_BxC in code_NxBxC]
    groups = of_layers[0][0].tolist()
    names = ["+".join(map(str, group)) if is_fuzzy else RULES[group] for group in groups]
    return names, {
        "mean codes": [cosine_similarity(means) for _, means in of_layers],
        "about their mean": [cosine_similarity(about_their_mean(means)) for _, means in of_layers],
    }


def _colours(sample: CodeSample, is_fuzzy: bool) -> dict[str, tuple[np.ndarray, list[str] | None]]:
    """The colours of points by label: numbers, or indices of named classes."""
    labels = sample.labels
    if not is_fuzzy:
        rules, rule_B = np.unique(labels["rule"], return_inverse=True)
        names = [RULES[rule] for rule in rules]
        return {"target": (labels["target"], None), "rule": (rule_B, names)}
    functions, function_B = np.unique(labels["terms"], axis=0, return_inverse=True)
    terms, first_B = np.unique(labels["terms"].min(1), return_inverse=True)
    functions_named = ["+".join(map(str, terms)) for terms in functions.tolist()]
    return {
        "target": (labels["target"], None),
        "function": (function_B.ravel(), functions_named),
        "first term": (first_B, [str(term) for term in terms]),
    }


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
    is_rules = "accuracy" in layers["0"]
    columns = (
        ("accuracy", "majority_accuracy", "macro_f1", "majority_macro_f1")
        if is_rules
        else ("f1", "majority_f1", "always_f1", "auc")
    )
    what = "rules" if is_rules else "terms, mean"
    yield f"{name + ': ' + what:<28}" + "".join(f"{column:>19}" for column in columns)
    for layer, scores in layers.items():
        means = scores if is_rules else scores["mean"]
        yield f"  layer {layer:<20}" + "".join(f"{means[column]:>19.3f}" for column in columns)
