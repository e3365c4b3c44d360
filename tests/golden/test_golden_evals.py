"""Fuzzy logic and SRAVEN against the authors' code: splits, examples, metrics and answers."""

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.evals.tasks.ambiguity import (
    is_ambiguous,
    paper_code_count,
    posterior,
)
from hyla_lm.evals.tasks.fuzzy_logic import (
    FuzzyLogic,
    example_of,
    fuzzy_function,
    term_bits,
)
from hyla_lm.evals.tasks.regression import regression_metrics
from hyla_lm.evals.tasks.sraven import Sraven, panel_metrics, permute_columns, tokenize
from hyla_lm.evals.tasks.sraven_rules import completions, draw_grids
from hyla_lm.metrics import means, to_host

Load = Callable[[str], dict[str, np.ndarray]]
THREEFRY = {"published": "old", "published_new_jax": "new"}
ROWS = ("constant", "progression_p1", "progression_p2", "progression_m1", "progression_m2")
ROWS += ("addition", "subtraction", "distribute_three")
# Means of float32 numbers of order 1, summed in another order: a few 1e-7.
MEAN_TOLERANCE = 2e-6
# R2 divides by variances of about 0.02, which both sides know to 1e-7 of order-1 squares.
R2_TOLERANCE = 2e-5


@pytest.mark.parametrize("kind", THREEFRY)
@pytest.mark.parametrize(("fraction", "seed"), [(0.3, 0), (0.5, 1), (0.7, 2024)])
def test_splits_of_fuzzy_logic(golden: Load, fraction: float, seed: int, kind: str) -> None:
    splits = golden("splits")
    config = FuzzyLogic(held_out_fraction=fraction, split=kind, seed=seed)
    tables = config.prepare_task(128).tables
    suffix = f"seed{seed}_frac{fraction}_{THREEFRY[kind]}"
    np.testing.assert_array_equal(tables["train"], splits[f"logic_train_{suffix}"])
    np.testing.assert_array_equal(tables["in_distribution"], splits[f"logic_train_{suffix}"])
    np.testing.assert_array_equal(tables["held_out"], splits[f"logic_test_{suffix}"])
    np.testing.assert_array_equal(tables["unknown_terms"], splits["logic_ood_terms_combos"])


@pytest.mark.parametrize("kind", THREEFRY)
@pytest.mark.parametrize("seed", [0, 2024])
def test_splits_of_sraven(golden: Load, seed: int, kind: str) -> None:
    splits, tables = golden("splits"), Sraven(split=kind, seed=seed).prepare_task(128).tables
    np.testing.assert_array_equal(
        tables["held_out"], splits[f"sraven_ood_seed{seed}_{THREEFRY[kind]}"]
    )
    together = np.concatenate([tables["train"], tables["held_out"]])
    np.testing.assert_array_equal(np.unique(together, axis=0), splits["sraven_all_combos"])
    assert len(together) == 330


def test_terms(golden: Load) -> None:
    np.testing.assert_array_equal(term_bits(np.arange(16), 4), golden("splits")["logic_terms"])


def test_fuzzy_examples(golden: Load) -> None:
    arrays = golden("logic")
    inputs_BxNxL = arrays["x"][:, :, :-1]
    terms_BxK = arrays["latents"] @ [8, 4, 2, 1]
    examples = jax.vmap(example_of)(inputs_BxNxL, terms_BxK)
    np.testing.assert_array_equal(examples["features"], arrays["x"])
    np.testing.assert_array_equal(examples["target"], arrays["y"][:, 0])
    targets = jax.vmap(fuzzy_function)(inputs_BxNxL, terms_BxK)
    np.testing.assert_array_equal(targets, arrays["targets_all"])
    np.testing.assert_allclose(examples["variance"], arrays["base_mse"][:, 0], rtol=MEAN_TOLERANCE)


def test_fuzzy_loss_and_both_r2(golden: Load) -> None:
    arrays = golden("logic")
    columns = (arrays[name][:, 0] for name in ("pred", "y", "base_mse"))
    sums = regression_metrics(*columns, jnp.ones(12))
    task = FuzzyLogic().prepare_task(4)
    logged = task.logged_metrics(means(to_host(sums)))
    np.testing.assert_allclose(logged["mse"], arrays["loss"], rtol=MEAN_TOLERANCE)
    np.testing.assert_allclose(logged["r2"], arrays["r2"], rtol=R2_TOLERANCE)
    np.testing.assert_allclose(logged["r2_pooled"], arrays["r2_global"], rtol=R2_TOLERANCE)


def test_rows_of_every_rule(golden: Load) -> None:
    arrays, rows = golden("sraven"), np.array(list(product(range(8), repeat=3)))
    grid_Rx3 = np.stack([rows, rows])
    fits_PxN, answer_PxN = map(np.asarray, completions_of(*(grid_Rx3[:, :, c] for c in range(3))))
    for rule, name in enumerate(ROWS):
        fitting = rows[fits_PxN[rule]]
        np.testing.assert_array_equal(fitting, np.unique(arrays[f"rows_{name}"], axis=0), name)
        np.testing.assert_array_equal(answer_PxN[rule][fits_PxN[rule]], fitting[:, 2])


completions_of = jax.jit(lambda a, b, c: completions(a, b, c, 8))
draw_many = jax.jit(lambda key, rule_M: draw_grids(key, rule_M, 3, 8))


def assert_follow(grids_NxRx3: np.ndarray, rule_N: np.ndarray) -> None:
    """Each grid fits its rule, which completes it with its own last symbol."""
    a, b, c = (jnp.asarray(grids_NxRx3[:, :, column].T) for column in range(3))
    fits_PxN, answer_PxN = map(np.asarray, completions_of(a, b, c))
    place = (rule_N, np.arange(len(rule_N)))
    assert fits_PxN[place].all()
    np.testing.assert_array_equal(answer_PxN[place], grids_NxRx3[:, 2, 2])


@pytest.mark.parametrize("rule", range(8))
def test_drawn_grids_are_made_of_exactly_the_valid_rows(golden: Load, rule: int) -> None:
    arrays = golden("sraven")
    ours = np.asarray(draw_many(jax.random.key(0), np.full(2000, rule)))
    drawn = np.unique(ours.reshape(-1, 3), axis=0)
    np.testing.assert_array_equal(drawn, np.unique(arrays[f"rows_{ROWS[rule]}"], axis=0))
    for grids in (ours, arrays[f"grids_{ROWS[rule]}"]):
        assert_follow(grids, np.full(len(grids), rule))


@pytest.mark.parametrize("split", ["train", "ood"])
def test_sraven_columns_and_tokens(golden: Load, split: str) -> None:
    arrays = {
        name.removeprefix(f"{split}_"): jnp.asarray(array)
        for name, array in golden("sraven").items()
    }
    instances = jax.vmap(permute_columns)(arrays["instances_unpermuted"], arrays["perms"])
    np.testing.assert_array_equal(instances, arrays["instances"])
    tokens = jax.vmap(lambda instance: tokenize(instance, 8))(instances)
    np.testing.assert_array_equal(tokens["features"], arrays["x"])
    np.testing.assert_array_equal(tokens["target"], arrays["y"])


def test_features_follow_the_sorted_rules(golden: Load) -> None:
    arrays = golden("sraven")
    for feature in range(4):
        grids = arrays["train_instances_unpermuted"][..., feature]
        assert_follow(grids, arrays["train_latents"][:, feature])


def test_sraven_loss_and_accuracies(golden: Load) -> None:
    arrays = golden("sraven")
    logits, target = jnp.asarray(arrays["loss_logits"]), jnp.asarray(arrays["train_y"])
    values = means(to_host(panel_metrics(logits, target, jnp.ones(16))))
    np.testing.assert_allclose(values["loss_nats"], arrays["loss_value"], rtol=MEAN_TOLERANCE)
    np.testing.assert_allclose(values["accuracy"], arrays["acc"], rtol=MEAN_TOLERANCE)
    np.testing.assert_allclose(
        values["feature_accuracy"], arrays["acc_per_feature"], rtol=MEAN_TOLERANCE
    )


@pytest.mark.parametrize("num_features", [2, 3])
def test_ambiguity_as_the_paper_counts_it(golden: Load, num_features: int) -> None:
    arrays, case = golden("ambiguity"), f"ref_M{num_features}_K4"
    count = jax.jit(jax.vmap(lambda instance: paper_code_count(instance, 4)))
    expected = arrays[f"{case}_count"]
    np.testing.assert_array_equal(count(arrays[f"{case}_instances"]), expected)
    assert (expected > 0).sum() >= 3


def test_consistent_panels_and_posteriors(golden: Load) -> None:
    arrays = golden("ambiguity")
    instances, expected = arrays["M4_K8_instances"], arrays["M4_K8_num_consistent_panels"]
    flag = jax.jit(jax.vmap(lambda instance: is_ambiguous(instance, 8)))
    np.testing.assert_array_equal(flag(instances), expected > 1)
    ours = posterior(instances, 8)
    np.testing.assert_array_equal(ours.consistent_panels, expected)
    # The fixture is float32 of a float64 sum of some hundred terms.
    np.testing.assert_allclose(ours.largest, arrays["M4_K8_bayes_max_posterior"], rtol=1e-6)
    np.testing.assert_allclose(ours.of_truth, arrays["M4_K8_bayes_posterior_of_truth"], rtol=1e-6)
