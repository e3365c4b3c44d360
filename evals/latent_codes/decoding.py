"""What latent codes tell: a task's parts by logistic regression, and their rank.

Classifiers are tested on other tasks than they were fit on. Codes are standardised by the training
codes; the solver is scikit-learn's lbfgs, with C = 1. For terms, which are rare, both classes have
the same weight.

Dimensions: B examples, C size of a code, K terms of a task.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from hyla_lm.evals.tasks.sraven_rules import RULES

MAX_ITERATIONS = 2000
Scores = dict[str, Any]


def fit(code_BxC: np.ndarray, label_B: np.ndarray, class_weight: str | None) -> Pipeline:
    """A fitted classifier of codes; fitting is deterministic."""
    regression = LogisticRegression(C=1.0, class_weight=class_weight, max_iter=MAX_ITERATIONS)
    return make_pipeline(StandardScaler(), regression).fit(code_BxC, label_B)


def decode_terms(
    train: tuple[np.ndarray, np.ndarray],
    tests: Mapping[str, tuple[np.ndarray, np.ndarray]],
    parts: Iterable[int],
) -> dict[str, Scores]:
    """Scores of each test set under classifiers fit on `train`; sets are (code_BxC, terms_BxK).

    Terms that all or no training tasks have are left out. `mean` is over terms that the set has.
    """
    code_BxC, terms_BxK = train
    scores: dict[str, dict[str, Scores]] = {name: {} for name in tests}
    for part in parts:
        label_B = (terms_BxK == part).any(1)
        if label_B.all() or not label_B.any():
            continue
        classifier = fit(code_BxC, label_B, "balanced")
        for name, (test_BxC, test_terms_BxK) in tests.items():
            certainty_B = classifier.decision_function(test_BxC)
            truth_B = (test_terms_BxK == part).any(1)
            scores[name][str(part)] = term_scores(truth_B, certainty_B)
    return {name: {"mean": _means(of_set), "terms": of_set} for name, of_set in scores.items()}


def term_scores(truth_B: np.ndarray, certainty_B: np.ndarray) -> Scores:
    """F1 and AUC of one term; `always_f1` is that of always saying yes.

    AUC is 0.5 for chance, and None if the test set has one class.
    """
    is_mixed = truth_B.any() and not truth_B.all()
    return {
        "f1": _f1(truth_B, certainty_B > 0),
        "always_f1": _f1(truth_B, np.ones_like(truth_B)),
        "auc": float(roc_auc_score(truth_B, certainty_B)) if is_mixed else None,
        "share": float(truth_B.mean()),
    }


def _means(by_part: Mapping[str, Scores]) -> Scores:
    present = [scores for scores in by_part.values() if scores["share"] > 0]
    return {
        name: float(np.mean(values))
        for name in ("f1", "always_f1", "auc")
        if (values := [scores[name] for scores in present if scores[name] is not None])
    }


def decode_rule(
    train: tuple[np.ndarray, np.ndarray], tests: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, Scores]:
    """Accuracy and F1 of the rule on each test set, whose sets are (code_BxC, rule_B).

    They are beside those of the most frequent rule of training.
    """
    code_BxC, rule_B = train
    classifier = fit(code_BxC, rule_B, None)
    majority = int(np.bincount(rule_B).argmax())

    def f1(truth_B: np.ndarray, guess_B: np.ndarray) -> list[float]:
        labels = range(len(RULES))
        return f1_score(truth_B, guess_B, labels=labels, average=None, zero_division=0).tolist()

    scores = {}
    for name, (test_BxC, truth_B) in tests.items():
        guess_B, always_B = classifier.predict(test_BxC), np.full_like(truth_B, majority)
        scores[name] = {
            "accuracy": float(np.mean(guess_B == truth_B)),
            "majority_accuracy": float(np.mean(always_B == truth_B)),
            "macro_f1": float(np.mean(f1(truth_B, guess_B))),
            "majority_macro_f1": float(np.mean(f1(truth_B, always_B))),
            "f1": f1(truth_B, guess_B),
        }
    return scores


def _f1(truth_B: np.ndarray, guess_B: np.ndarray) -> float:
    return float(f1_score(truth_B, guess_B, zero_division=0))


def by_layer(code_NxBxC: np.ndarray) -> dict[str, np.ndarray]:
    """The codes of each layer by its number and, under "all", of all layers together."""
    layers = {str(layer): code for layer, code in enumerate(code_NxBxC)}
    return {**layers, "all": np.concatenate(list(code_NxBxC), axis=-1)}


def effective_rank(code_BxC: np.ndarray) -> float:
    """The effective rank: exp of the entropy of the shares of the centred codes' singular values.

    It is 0 for codes that do not vary (Roy and Vetterli, 2007).
    """
    code_BxC = code_BxC.astype(np.float64)
    values = np.linalg.svd(code_BxC - code_BxC.mean(0), compute_uv=False)
    # Rounding of the mean leaves singular values of this size where codes are all alike.
    floor = np.finfo(np.float64).eps * np.abs(code_BxC).max(initial=0) * len(code_BxC)
    values = values[values > floor]
    share = values / values.sum() if len(values) else values
    return float(np.exp(-np.sum(share * np.log(share)))) if len(values) else 0.0
