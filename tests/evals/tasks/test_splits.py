"""Splits are data: fixed, disjoint, and under `covering` every part is trained."""

from itertools import combinations

import jax
import numpy as np
import pytest

from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic
from hyla_lm.evals.tasks.splits import make_split
from hyla_lm.evals.tasks.sraven import Sraven

PAIRS = np.array(list(combinations(range(12), 2)))
PUBLISHED_SEEDS = (0, 1, 2, 2024)


def sets_of(rows: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(row) for row in rows.tolist()}


@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.7])
def test_covering_splits_hold_every_pair_once_and_train_every_term(fraction: float) -> None:
    for seed in range(40):
        split = make_split(PAIRS, FuzzyLogic(held_out_fraction=fraction, seed=seed))
        train, held_out = sets_of(split.train_CxM), sets_of(split.held_out_CxM)
        assert len(held_out) == int(66 * fraction)
        assert not train & held_out and train | held_out == sets_of(PAIRS)
        assert set(split.train_CxM.ravel().tolist()) == set(range(12))
        assert split.missing_parts() == []


def test_some_seeds_needed_another_draw() -> None:
    """13.7 % of random splits of this size miss a term, so of 40 seeds some must have."""
    from hyla_lm.evals.tasks.splits import _cut, _hashed_order

    first = [_cut(PAIRS, _hashed_order(66, seed, 0), 46) for seed in range(40)]
    missed = [seed for seed, split in enumerate(first) if split.missing_parts()]
    assert 1 <= len(missed) <= 14
    for seed in missed:
        assert make_split(PAIRS, FuzzyLogic(held_out_fraction=0.7, seed=seed)).missing_parts() == []


def test_a_covering_split_never_changes() -> None:
    split = make_split(PAIRS, FuzzyLogic(held_out_fraction=0.7, seed=0))
    assert split.train_CxM[:4].tolist() == COVERING_SEED_0
    other = make_split(PAIRS, FuzzyLogic(held_out_fraction=0.7, seed=1))
    assert sets_of(split.train_CxM) != sets_of(other.train_CxM)


COVERING_SEED_0: list[list[int]] = [[8, 9], [1, 6], [7, 9], [5, 10]]


@pytest.mark.parametrize(
    ("kind", "partitionable"), [("published", False), ("published_new_jax", True)]
)
def test_published_orders_are_what_jax_draws(kind: str, partitionable: bool) -> None:
    if not hasattr(jax, "threefry_partitionable"):
        pytest.skip("this JAX draws in one way only")
    with jax.threefry_partitionable(partitionable):
        for seed in PUBLISHED_SEEDS:
            for config in (FuzzyLogic(split=kind, seed=seed), Sraven(split=kind, seed=seed)):
                tables = config.prepare_task(1).tables
                together = np.concatenate([tables["held_out"], tables["train"]])
                combos = np.array(sorted(together.tolist()))
                drawn = jax.random.permutation(jax.random.PRNGKey(seed), len(combos))
                np.testing.assert_array_equal(combos[np.asarray(drawn)], together)


@pytest.mark.parametrize(("seed", "missing"), [(0, []), (1, []), (2, [5, 6]), (2024, [5])])
def test_published_splits_that_never_train_a_term_say_so(seed: int, missing: list[int]) -> None:
    config = FuzzyLogic(held_out_fraction=0.7, split="published", seed=seed)
    task = config.prepare_task(1)
    assert task.missing_terms == missing
    assert ("never trained" in task.summary()["split"]) == bool(missing)


@pytest.mark.parametrize("seed", [0, 1, 2, 7])
def test_sraven_holds_out_a_quarter_of_330_multisets(seed: int) -> None:
    tables = Sraven(seed=seed).prepare_task(1).tables
    train, held_out = sets_of(tables["train"]), sets_of(tables["held_out"])
    assert (len(train), len(held_out)) == (248, 82)
    assert not train & held_out
    assert set(tables["train"].ravel().tolist()) == set(range(8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out_fraction": 0.0}, r"FuzzyLogic\.held_out_fraction = 0\.0 .* holds out 0 and"),
        ({"held_out_fraction": 1.0}, r"trains on 0: both must be above 0"),
        ({"held_out_fraction": -0.5}, r"both must be above 0"),
        ({"held_out_fraction": 0.95}, r"leaves 4 of 66 .* none had every part: lower it"),
        ({"split": "published", "seed": 3}, r"known for seeds 0, 1, 2, 2024, not for 3"),
        ({"split": "published", "num_terms": 3}, r"66 and 330 combinations, not for 220"),
    ],
)
def test_splits_that_cannot_be_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        FuzzyLogic(**settings).prepare_task(1)
