"""Latent codes, value units and contributions, read from a model as its parameters make them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import (
    VARIANTS,
    attend_request,
    latent_codes_of,
    make_request,
)
from hyla_lm.evals.latent_codes.decoding import dead_units
from hyla_lm.evals.latent_codes.language import pick
from hyla_lm.evals.latent_codes.samples import Choices, active_units, any_active, draw_of
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic
from hyla_lm.evals.tasks.generated import key_of
from hyla_lm.evals.tasks.sraven import Sraven
from hyla_lm.evals.tasks.sraven_rules import RULES, completions
from hyla_lm.model.inspection import LayerView


@pytest.mark.parametrize("fixed", ["context", "query"])
def test_what_is_fixed_in_fuzzy_logic(fixed: str) -> None:
    task = FuzzyLogic(sequence_length=6).prepare_task(8)
    draw = jax.jit(draw_of(task, Choices(fixed=fixed)))
    batch = draw(key_of(0, "x"), jnp.arange(50), jnp.asarray(task.tables["held_out"]))
    x_BxNxL = np.asarray(batch["features"])[..., :-1]
    context, query = x_BxNxL[:, :-1], x_BxNxL[:, -1]
    assert (context == context[0]).all() == (fixed == "context")
    assert (query == query[0]).all() == (fixed == "query")
    assert len(np.unique(batch["terms"], axis=0)) > 20
    assert fixed == "query" or len(np.unique(batch["target"])) > 10
    assert (np.asarray(batch["features"])[:, -1, -1] == 0).all()


def test_the_rule_of_a_sraven_query_is_that_of_the_feature_it_asks_for() -> None:
    task = Sraven(num_features=2).prepare_task(8)
    draw = jax.jit(draw_of(task, Choices()))
    batch = jax.device_get(draw(key_of(0, "x"), jnp.arange(300), jnp.asarray(task.tables["train"])))
    panel_BxRxCxM = batch["features"].argmax(-1).reshape(300, 3, 3, 2)
    a_R, b_R, c_R = (jnp.asarray(panel_BxRxCxM[:, :, column].swapaxes(0, 1)) for column in range(3))
    found = np.zeros(300, bool)
    for first, second in np.ndindex(2, 2):  # the places of the feature in the other columns
        columns = a_R[:, :, first], b_R[:, :, second], c_R[:, :, -1]
        fits, answer = jax.jit(completions, static_argnums=3)(*columns, 8)
        place = (batch["rule"], np.arange(300))
        found |= np.asarray(fits[place] & (answer[place] == batch["target"]))
    assert found.all()
    assert len(np.unique(batch["rule"])) == len(RULES)


def view_of(variant: str, v_BxSxHxU: np.ndarray, deep: np.ndarray | None = None) -> LayerView:
    """A layer of one head whose query agrees with every key: codes are above 0."""
    ones = jnp.ones((*v_BxSxHxU.shape[:3], 2))
    deep_kernel = None if deep is None else jnp.asarray(deep)
    v = jnp.asarray(v_BxSxHxU)
    request = make_request(ones, ones, v, VARIANTS[variant], deep_kernel_HxUxU=deep_kernel)
    return LayerView(latent_codes_of(request), request)


def test_dead_units_are_those_that_no_pair_makes_active() -> None:
    v = np.array([[-1.0, 2.0, -3.0], [-1.0, -1.0, -0.5]]).reshape(1, 2, 1, 3)
    active = active_units(view_of("hyla", v))
    assert active is not None and active.tolist() == [False, True, False]
    assert dead_units(np.asarray(active)) == {"units": 3, "dead": 2, "share": pytest.approx(2 / 3)}

    second = np.array([[[0.0, 0, 0], [0, 0, 1], [0, 0, 0]]])
    deep = active_units(view_of("hyla_deep", v, second))
    assert deep is not None and deep.tolist() == [False, True, False, False, False, True]

    by_head = active_units(view_of("linear_rms_head_nonlinear_value", np.concatenate([v, -v], 2)))
    assert by_head is not None and by_head.tolist() == [False, True, False, True, True, True]
    assert active_units(view_of("softmax", v)) is None
    assert dead_units(None) is None
    other = np.array([True, False, False])
    assert any_active([[np.asarray(active), None], [other, None]])[0].tolist() == [
        True,
        True,
        False,
    ]  # type: ignore[union-attr]


@pytest.mark.parametrize("variant", ["softmax", "hyla_deep"])
def test_a_contribution_is_the_length_of_what_a_key_adds(variant: str) -> None:
    key = jax.random.split(jax.random.key(0), 4)
    q, k, v = (jax.random.normal(part, (2, 5, 3, 2)) for part in key[:3])
    deep = jax.random.normal(key[3], (3, 2, 2)) if variant == "hyla_deep" else None
    request = make_request(q, k, v, VARIANTS[variant], causal=True, deep_kernel_HxUxU=deep)
    view = LayerView(latent_codes_of(request), request)
    whole = attend_request(request, "reference")
    for s in range(5):
        without = attend_request(replace(request, v_BxSxHxU=v.at[:, s].set(0)), "reference")
        length_BxT = jnp.sqrt(jnp.square(whole - without).sum((2, 3)))
        np.testing.assert_allclose(view.contributions()[:, :, s], length_BxT, atol=1e-5)


def test_pick_takes_the_keys_that_add_most() -> None:
    code_BxHxTxS = jnp.arange(2 * 3 * 6 * 6.0).reshape(2, 3, 6, 6)
    added_BxTxS = jnp.tile(jnp.array([0.0, 5, 0, 7, 1, 0]), (2, 6, 1))
    own, others, position = pick(code_BxHxTxS, added_BxTxS, jnp.array([[4], [2]]))
    assert position[:, 0].tolist() == [[3, 1, 4, -1]] * 2
    np.testing.assert_array_equal(own[1, 0], code_BxHxTxS[1, :, 2, 2])
    np.testing.assert_array_equal(others[0, 0, 1], code_BxHxTxS[0, :, 4, 1])
    assert not others[:, :, 3].any()
