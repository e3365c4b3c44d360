"""Splits are data: `covering` trains every part and never changes; what `published` lacks."""

from itertools import combinations

import numpy as np
import pytest

from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic
from hyla_lm.evals.tasks.splits import make_split

PAIRS = np.array(list(combinations(range(12), 2)))


def test_covering_splits_hold_every_pair_once_and_train_every_term() -> None:
    """Of random splits of this size 13.7 % miss a term, so some of these seeds need more draws."""
    for seed in range(40):
        split = make_split(PAIRS, FuzzyLogic(held_out_fraction=0.7, seed=seed))
        together = np.concatenate([split["train"], split["held_out"]])
        assert (len(split["held_out"]), len(together)) == (46, 66)
        np.testing.assert_array_equal(np.unique(together, axis=0), PAIRS)
        assert len(np.unique(split["train"])) == 12


def test_a_covering_split_never_changes() -> None:
    split = make_split(PAIRS, FuzzyLogic(held_out_fraction=0.7, seed=0))
    assert split["train"][:4].tolist() == [[8, 9], [1, 6], [7, 9], [5, 10]]


@pytest.mark.parametrize(("seed", "missing"), [(0, []), (2, [5, 6])])
def test_published_splits_that_never_train_a_term_say_so(seed: int, missing: list[int]) -> None:
    task = FuzzyLogic(held_out_fraction=0.7, split="published", seed=seed).prepare_task(1)
    assert task.missing_terms == missing
    assert ("never trained" in task.summary()["split"]) == bool(missing)
