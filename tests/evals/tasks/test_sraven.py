"""SRAVEN instances: rules, permutations, tokens, filtering and metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.evals.tasks.sraven import Sraven, panel_metrics, permute_columns, tokenize
from hyla_lm.evals.tasks.sraven_rules import RULES, STEPS, completions
from hyla_lm.metrics import means, to_host


def test_unpermuted_features_follow_their_rules() -> None:
    plain = Sraven(num_features=2, grid_rows=4, permute_features=False).prepare_task(8)
    batch = jax.device_get(
        jax.jit(plain.draw)(plain.train_key(0), jnp.arange(500), plain.tables["train"])
    )
    assert batch["instance"].shape == (500, 4, 3, 2)
    for feature in range(2):
        columns = np.moveaxis(batch["instance"][..., feature], 0, -1)
        a, b, c = (jnp.asarray(columns[:, column]) for column in range(3))
        fits, answer = jax.jit(completions, static_argnums=3)(a, b, c, 8)
        rule = (batch["rules"][:, feature], np.arange(500))
        assert fits[rule].all()
        np.testing.assert_array_equal(answer[rule], c[-1])
    assert plain.sequence_length == 3 * 4 * 2
    assert batch["features"].shape == (500, 24, 8)


def test_columns_are_permuted_alike_in_all_rows_and_each_on_its_own() -> None:
    instance = jnp.arange(2 * 3 * 2).reshape(2, 3, 2)
    permuted = permute_columns(instance, jnp.array([[0, 1], [1, 0], [1, 0]]))
    assert permuted.tolist() == [
        [[0, 1], [3, 2], [5, 4]],
        [[6, 7], [9, 8], [11, 10]],
    ]


def test_tokens_are_panels_and_queries() -> None:
    instance = jnp.arange(18).reshape(3, 3, 2) % 5
    tokens = tokenize(instance, 5)
    assert tokens["features"].shape == (18, 5)
    assert tokens["features"][:16].argmax(1).tolist() == [i % 5 for i in range(16)]
    assert (tokens["features"][:16].sum(1) == 1).all() and (tokens["features"][16:] == 0).all()
    assert tokens["target"].tolist() == [16 % 5, 17 % 5]


def test_metrics_score_whole_panels_and_features() -> None:
    logits = jnp.zeros((3, 5, 3)).at[:, -2:, 0].set(9.0)
    target, weight = jnp.array([[0, 0], [0, 1], [1, 1]]), jnp.array([1.0, 1.0, 0.0])
    values = means(to_host(panel_metrics(logits, target, weight)))
    assert values["accuracy"] == 0.5 and values["feature_accuracy"] == 0.75
    wrong, right = np.log(np.exp(9) + 2), np.log(1 + 2 * np.exp(-9))
    # float32 logarithms near 9 are right to 1e-6.
    assert values["loss_nats"] == pytest.approx((3 * right + wrong) / 4, rel=1e-5)
    objective, metrics = Sraven().prepare_task(4).score(logits, {"target": target}, weight)
    assert objective == metrics["loss_nats"]
    assert means(to_host(metrics)) == values


def test_steps_are_those_that_rules_are_named_by() -> None:
    named = [f"progression {step:+d}" if step else "constant" for step in STEPS]
    assert tuple(named) == RULES[: len(STEPS)]


def test_distribute_three_needs_three_different_symbols() -> None:
    """0, 1, 2 in two rows; then 2 and 0, which 1 completes, and 2 twice, which nothing does."""
    a, b, c = jnp.array([[0, 0], [1, 1], [2, 2]]), jnp.array([[1, 1], [2, 2], [0, 2]]), 2
    fits, answer = completions(a, b, jnp.array([[c, c], [0, 0], [0, 0]]), 8)
    rule = RULES.index("distribute three")
    assert fits[rule].tolist() == [True, False] and answer[rule, 0] == 1
