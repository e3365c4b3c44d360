"""Fuzzy logic: the function by its definition, tokens, unknown terms and metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic, fuzzy_function
from hyla_lm.evals.tasks.regression import regression_metrics
from hyla_lm.metrics import means, to_host

SMALL = FuzzyLogic(sequence_length=8, evaluation_examples=50)


def test_functions_of_a_point_computed_by_hand() -> None:
    x_1xL = jnp.array([[0.9, 0.3, 0.6, 0.2]])
    # Term 15 is min(.9, .3, .6, .2), term 8 min(.9, 1 - .3, 1 - .6, 1 - .2), term 0 min(1 - x).
    expected = {(15, 15): 0.2, (8, 15): 0.4, (0, 15): 0.2, (0, 8): 0.4, (0, 0): 0.1}
    for terms, value in expected.items():
        # 1 - x rounds to 6e-8.
        np.testing.assert_allclose(fuzzy_function(x_1xL, jnp.array(terms)), [value], rtol=1e-6)


def test_tokens_have_all_targets_but_that_of_the_query() -> None:
    task = SMALL.prepare_task(8)
    batch = jax.jit(task.draw)(task.train_key(0), jnp.arange(50), task.tables["train"])
    points, shown = batch["features"][:, :, :-1], batch["features"][:, :, -1]
    values = jax.vmap(fuzzy_function)(points, batch["terms"])
    np.testing.assert_array_equal(values[:, :-1], shown[:, :-1])
    np.testing.assert_array_equal(values[:, -1], batch["target"])
    assert (shown[:, -1] == 0).all()


def test_unknown_terms_stay_out_of_the_other_sets() -> None:
    tables = FuzzyLogic(unknown_terms=(3, 0, 7)).prepare_task(8).tables
    for name in ("train", "held_out", "in_distribution"):
        assert not np.isin(tables[name], [0, 3, 7]).any()
    assert sorted(map(sorted, tables["unknown_terms"].tolist())) == [[0, 3], [0, 7], [3, 7]]


def test_metrics_weigh_sequences_and_leave_filled_rows_out() -> None:
    prediction, target = jnp.array([0.5, 0.2, 9.0]), jnp.array([0.1, 0.4, 0.0])
    variance, weight = jnp.array([0.16, 0.02, 1.0]), jnp.array([1.0, 1.0, 0.0])
    sums = to_host(regression_metrics(prediction, target, variance, weight))
    values = means(sums)
    # float32 squares of these decimals are right to 1e-7.
    assert values["mse"] == pytest.approx((0.16 + 0.04) / 2, rel=1e-5)
    assert values["r2"] == pytest.approx(((1 - 1) + (1 - 2)) / 2, abs=1e-5)
    task = SMALL.prepare_task(8)
    logged = task.logged_metrics(values)
    assert logged["r2_pooled"] == pytest.approx(1 - 0.1 / 0.15**2, rel=1e-5)
    assert "target" not in logged
    outputs = jnp.zeros((3, 5, 1)).at[:, -1, 0].set(prediction)
    objective, metrics = task.score(outputs, {"target": target, "variance": variance}, weight)
    assert objective == metrics["mse"] and to_host(metrics) == sums
