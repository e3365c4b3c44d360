"""What latent codes tell: a task's parts by logistic regression, ranks, dead units, similarity.

Classifiers are tested on other tasks than they were fit on. Codes are standardised by the training
codes; the solver is scikit-learn's lbfgs, with C = 1. For terms, which are rare, both classes have
the same weight.

Dimensions: B examples, C size of a code, K terms of a task, G groups of examples.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

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

    Terms that all or no training tasks have are left out.
    """
    code_BxC, terms_BxK = train
    scores: dict[str, dict[int, Scores]] = {name: {} for name in tests}
    for part in parts:
        label_B = has(terms_BxK, part)
        if label_B.all() or not label_B.any():
            continue
        classifier = fit(code_BxC, label_B, "balanced")
        for name, (test_BxC, test_terms_BxK) in tests.items():
            certainty_B = classifier.decision_function(test_BxC)
            truth_B = has(test_terms_BxK, part)
            scores[name][part] = term_scores(truth_B, certainty_B, bool(2 * label_B.mean() > 1))
    return {name: mean_of_parts(by_part) for name, by_part in scores.items()}


def has(terms_BxK: np.ndarray, part: int) -> np.ndarray:
    """Whether each task has the term."""
    return (terms_BxK == part).any(1)


def term_scores(truth_B: np.ndarray, certainty_B: np.ndarray, majority: bool) -> Scores:
    """F1 and AUC of one term, beside two classifiers that do not look at the code.

    `majority_f1` always gives the more frequent answer of training, `always_f1` always yes. AUC is
    0.5 for chance, and None if the test set has one class.
    """
    is_mixed = truth_B.any() and not truth_B.all()
    return {
        "f1": _f1(truth_B, certainty_B > 0),
        "majority_f1": _f1(truth_B, np.full_like(truth_B, majority)),
        "always_f1": _f1(truth_B, np.ones_like(truth_B)),
        "auc": float(roc_auc_score(truth_B, certainty_B)) if is_mixed else None,
        "share": float(truth_B.mean()),
    }


def mean_of_parts(by_part: Mapping[int, Scores]) -> Scores:
    """Scores by part, and their means, as `mean`, over parts that the test set has."""
    present = [scores for scores in by_part.values() if scores["share"] > 0]
    names = ("f1", "majority_f1", "always_f1", "auc")
    means = {
        name: float(np.mean([s[name] for s in present if s[name] is not None]))
        for name in names
        if any(s[name] is not None for s in present)
    }
    return {"mean": means, "terms": {str(part): scores for part, scores in by_part.items()}}


def decode_rule(
    train: tuple[np.ndarray, np.ndarray],
    tests: Mapping[str, tuple[np.ndarray, np.ndarray]],
    num_rules: int,
) -> dict[str, Scores]:
    """Accuracy and F1 of the rule on each test set; sets are (code_BxC, rule_B)."""
    code_BxC, rule_B = train
    classifier = fit(code_BxC, rule_B, None)
    majority = int(np.bincount(rule_B, minlength=num_rules).argmax())
    return {
        name: rule_scores(truth_B, classifier.predict(test_BxC), majority, num_rules)
        for name, (test_BxC, truth_B) in tests.items()
    }


def rule_scores(truth_B: np.ndarray, guess_B: np.ndarray, majority: int, num_rules: int) -> Scores:
    """Scores of a guess, beside those of the most frequent rule of training."""
    rules = list(range(num_rules))
    always_B = np.full_like(truth_B, majority)
    by_rule = f1_score(truth_B, guess_B, labels=rules, average=None, zero_division=0)
    return {
        "accuracy": float(accuracy_score(truth_B, guess_B)),
        "majority_accuracy": float(accuracy_score(truth_B, always_B)),
        "macro_f1": float(np.mean(by_rule)),
        "majority_macro_f1": float(
            f1_score(truth_B, always_B, labels=rules, average="macro", zero_division=0)
        ),
        "f1": [float(value) for value in by_rule],
    }


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


def mean_codes(code_BxC: np.ndarray, group_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The groups that occur, sorted, and the mean code of each."""
    groups, index_B = np.unique(group_B, axis=0, return_inverse=True)
    sums = np.zeros((len(groups), code_BxC.shape[1]))
    np.add.at(sums, index_B.ravel(), code_BxC)
    return groups, sums / np.bincount(index_B.ravel())[:, None]


def cosine_similarity(mean_GxC: np.ndarray) -> np.ndarray:
    """The cosine similarity of groups, GxG; 0 with a mean of zeros."""
    length = np.linalg.norm(mean_GxC, axis=1, keepdims=True)
    unit_GxC = np.divide(mean_GxC, length, out=np.zeros_like(mean_GxC), where=length > 0)
    return unit_GxC @ unit_GxC.T


def about_their_mean(mean_GxC: np.ndarray) -> np.ndarray:
    """The group means minus their own mean."""
    return mean_GxC - mean_GxC.mean(0)


def dead_units(active: np.ndarray | None) -> dict[str, float | int] | None:
    """Counts a layer's value units that never were above 0; None without a ReLU."""
    if active is None:
        return None
    return {"units": active.size, "dead": int((~active).sum()), "share": float((~active).mean())}
