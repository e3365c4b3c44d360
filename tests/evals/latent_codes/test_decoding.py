"""Decoding and ranks of codes whose answer is known."""

from itertools import combinations

import numpy as np
import pytest

from hyla_lm.evals.latent_codes.decoding import (
    decode_rule,
    decode_terms,
    effective_rank,
    term_scores,
)

TERMS = 6
PAIRS = np.array(list(combinations(range(TERMS), 2)))
TRAINED, LEFT_OUT = np.delete(PAIRS, [1, 6, 11], axis=0), PAIRS[[1, 6, 11]]


def codes_of_terms(pairs: np.ndarray, seed: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Codes, of size 8, in which each term adds a direction of its own."""
    rng = np.random.default_rng(seed)
    terms_BxK = pairs[rng.integers(len(pairs), size=1500)]
    direction_PxC = np.random.default_rng(0).normal(size=(TERMS, 8))
    return direction_PxC[terms_BxK].sum(1) + noise * rng.normal(size=(1500, 8)), terms_BxK


def test_decoding_finds_terms_on_tasks_it_was_not_fit_on() -> None:
    train = codes_of_terms(TRAINED, 1, 0.1)
    tests = {"same": codes_of_terms(TRAINED, 2, 0.1), "new": codes_of_terms(LEFT_OUT, 3, 0.1)}
    for scores in decode_terms(train, tests, range(TERMS)).values():
        assert scores["mean"]["f1"] > 0.95 and scores["mean"]["auc"] > 0.99
        assert set(scores["terms"]) == {str(term) for term in range(TERMS)}


def test_scores_of_those_that_do_not_look() -> None:
    truth, certainty = np.array([True, False, False, False]), np.array([1.0, 2, -1, -1])
    scores = term_scores(truth, certainty)
    assert scores["f1"] == pytest.approx(2 / 3) and scores["auc"] == pytest.approx(2 / 3)
    assert scores["always_f1"] == pytest.approx(0.4)
    assert term_scores(np.zeros(4, bool), certainty)["auc"] is None


def test_decoding_of_rules() -> None:
    rng = np.random.default_rng(0)
    direction_PxC = rng.normal(size=(8, 6))

    def codes(count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        rule_B = rng.choice(8, size=count, p=[0.3, *[0.1] * 7])
        return direction_PxC[rule_B] + noise * rng.normal(size=(count, 6)), rule_B

    good = decode_rule(codes(1000, 0.1), {"x": codes(1000, 0.1)})["x"]
    assert good["accuracy"] > 0.97 and good["macro_f1"] > 0.97 and min(good["f1"]) > 0.9
    assert good["majority_accuracy"] == pytest.approx(0.3, abs=0.05)
    # Always rule 0: its F1 is 2 * 0.3 / 1.3, the others' 0.
    assert good["majority_macro_f1"] == pytest.approx(0.6 / 1.3 / 8, abs=0.01)


def test_effective_rank_of_known_codes() -> None:
    axes = np.concatenate([np.eye(4), -np.eye(4)])
    assert effective_rank(axes) == pytest.approx(4)
    assert effective_rank(axes @ np.ones((4, 4))) == pytest.approx(1)
    alike = np.random.default_rng(0).normal(size=8).astype(np.float32)
    assert effective_rank(np.tile(alike, (4096, 1))) == 0
    assert effective_rank(axes + 100) == pytest.approx(4)
    uneven = np.concatenate([np.diag([3.0, 1.0]), -np.diag([3.0, 1.0])])
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert effective_rank(uneven) == pytest.approx(np.exp(entropy))
