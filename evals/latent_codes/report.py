"""The report of a run's latent codes: decoding, ranks and a picture."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hyla_lm.evals.latent_codes.decoding import (
    by_layer,
    decode_rule,
    decode_terms,
    effective_rank,
)
from hyla_lm.evals.latent_codes.figures import draw_tsne
from hyla_lm.evals.latent_codes.samples import Choices, CodeSample, collector
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogicTask
from hyla_lm.run.restored import RestoredRun
from hyla_lm.storage import written_aside

# No training task has an unknown term, so the set of those is not decoded.
KNOWN_SETS = ("in_distribution", "held_out")
Report = dict[str, Any]


def report(run: RestoredRun, choices: Choices, out: Path) -> Report:
    """The metrics of a fuzzy-logic or SRAVEN run; writes codes and a picture to `out`.

    Classifiers are fit on codes of training tasks and tested on other examples of both sets. The
    tSNE picture is of the held-out tasks.
    """
    task = run.program.task
    collect = collector(run.program.model, run.params, task, choices)
    train = collect("in_distribution", "latent codes to fit on")
    tests = {name: collect(name, "latent codes to test on") for name in KNOWN_SETS}
    arrays = {
        f"{name}/{key}": values
        for name, sample in {"decoder_training": train, **tests}.items()
        for key, values in {"code_NxBxC": sample.code_NxBxC, **sample.labels}.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    with written_aside(out / "codes.npz") as aside, aside.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    held_out = tests["held_out"]
    label = "terms" if isinstance(task, FuzzyLogicTask) else "rule"
    _, class_B = np.unique(held_out.labels[label], axis=0, return_inverse=True)
    by_class = {"function": class_B} if label == "terms" else {"rule": held_out.labels["rule"]}
    colours = {"target": held_out.labels["target"], **by_class}
    draw_tsne(out / "tsne.png", held_out.code_NxBxC, colours, choices.seed)
    return {
        "task": "fuzzy logic" if label == "terms" else "SRAVEN",
        "attention": list(run.program.experiment.model.pattern),
        "choices": asdict(choices),
        "decoding": _decoding(train, tests, label),
        "effective_rank": {
            name: [effective_rank(code) for code in sample.code_NxBxC]
            for name, sample in tests.items()
        },
        "code_size": held_out.code_NxBxC.shape[-1],
    }


def _decoding(train: CodeSample, tests: Mapping[str, CodeSample], label: str) -> Report:
    """Scores of terms or of rules, by set and layer."""
    codes = {name: by_layer(sample.code_NxBxC) for name, sample in tests.items()}
    parts = np.unique(np.concatenate([sample.labels[label] for sample in tests.values()])).tolist()
    decoding: Report = {name: {} for name in tests}
    for layer, code in by_layer(train.code_NxBxC).items():
        fit = (code, train.labels[label])
        pairs = {name: (codes[name][layer], tests[name].labels[label]) for name in tests}
        is_terms = label == "terms"
        scores = decode_terms(fit, pairs, parts) if is_terms else decode_rule(fit, pairs)
        for name, of_set in scores.items():
            decoding[name][layer] = of_set
    return decoding


def lines(report: Report) -> Iterator[str]:
    """The figures to print: a line for each set and layer."""
    yield f"{report['task']}, {' + '.join(report['attention'])}, step {report['step']}"
    for name, layers in report["decoding"].items():
        for layer, scores in layers.items():
            means = scores.get("mean", scores).items()
            shown = "  ".join(f"{key} {x:.3f}" for key, x in means if isinstance(x, float))
            yield f"{name}, layer {layer}: {shown}"
        shown = ", ".join(f"{rank:.2f}" for rank in report["effective_rank"][name])
        yield f"{name}, effective rank of codes of size {report['code_size']}: {shown}"
