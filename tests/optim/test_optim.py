"""The schedule by its values, what decays, and updates small enough to compute by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.errors import UserError
from hyla_lm.model.config import Features, Tokens
from hyla_lm.optim import OptimizerConfig, decay_mask, make_optimizer, make_schedule
from hyla_lm.parallel.sharding import path_of
from tests.optim.small_params import params_of

# A schedule is a few float32 operations, each right to 6e-8.
FLOAT32 = 1e-6
PEAK, WARMUP, STEPS = 2e-3, 100, 1100


@pytest.mark.parametrize(
    ("update", "share_of_peak"),
    [(1, 0.01), (350, 0.1 + 0.9 * (1 + 2**-0.5) / 2), (5000, 0.1)],
)
def test_rises_linearly_then_falls_as_a_cosine(update: int, share_of_peak: float) -> None:
    schedule = make_schedule(OptimizerConfig(PEAK, WARMUP), STEPS)
    np.testing.assert_allclose(schedule(update), PEAK * share_of_peak, rtol=FLOAT32, atol=1e-9)
    assert schedule(jnp.int32(update)) == schedule(update)
    assert isinstance(schedule(update), np.ndarray), "no device is asked, nor waited for"


@pytest.mark.parametrize(("warmup_steps", "final_fraction"), [(0, 0.1), (99, 0.0), (1, 1.0)])
def test_reaches_the_final_fraction_exactly_at_the_last_step(
    warmup_steps: int, final_fraction: float
) -> None:
    config = OptimizerConfig(1.0, warmup_steps, final_fraction)
    schedule = make_schedule(config, 100)
    assert schedule(warmup_steps) == 1
    assert schedule(100) == np.float32(final_fraction)
    # One step before the end of the longest cosine is (pi / 200)^2 * 0.9 above it, 2e-4.
    assert final_fraction == 1 or schedule(99) > final_fraction + 1e-4


LEFT: dict[str, Callable[[float], float]] = {
    "linear": lambda over: 1 - over,
    "1-sqrt": lambda over: 1 - over**0.5,
}


@pytest.mark.parametrize("shape", LEFT)
@pytest.mark.parametrize(
    ("decay", "begin"),
    [({}, 80), ({"decay_share": 0.001}, 99), ({"decay_begins": 60}, 60)],
)
def test_wsd_rises_stays_and_decays(shape: str, decay: dict[str, Any], begin: int) -> None:
    config = OptimizerConfig(PEAK, 10, 0.1, schedule="wsd", decay_shape=shape, **decay)

    def expected(step: int) -> float:
        if step < 10:
            return PEAK * step / 10
        over = max(0, min(1, (step - begin) / (100 - begin)))
        return PEAK * (0.1 + 0.9 * LEFT[shape](over))

    found = [make_schedule(config, 100)(step) for step in range(110)]
    np.testing.assert_allclose(found, [expected(step) for step in range(110)], rtol=FLOAT32)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"warmup_steps": 50, "cosine_ends_early": True}, "fall from step 50 to 50: change it"),
        ({"schedule": "wsd", "decay_begins": 9}, "fall from step 9 to 100: change it"),
        ({"schedule": "wsd", "decay_begins": 100}, "fall from step 100 to 100: change it"),
        ({"schedule": "wsd", "cosine_begins": 50}, "cosine_begins = 50 goes with .*'cosine'"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_schedule(OptimizerConfig(**{"warmup_steps": 10, **settings}), 100)


@pytest.mark.parametrize(
    ("io", "fields", "decayed"),
    [
        (
            Tokens(7),
            {"attention": "hyla_deep", "positions": "relative"},
            {"kernel", "table", "deep_kernel"},
        ),
        (Tokens(7), {"feedforward": "moe"}, {"kernel", "table", "gate", "up", "down"}),
        (Features(3, 2), {"feedforward": "swiglu"}, {"kernel"}),
    ],
)
def test_biases_and_norm_scales_alone_do_not_decay(
    io: Tokens | Features, fields: dict[str, Any], decayed: set[str]
) -> None:
    params = params_of(io, **fields)
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for path, decays in jax.tree_util.tree_leaves_with_path(decay_mask(params)):
        names[decays].add(path_of(path).split("/")[-1])
    relative = {"relative_bias"} if fields.get("positions") == "relative" else set()
    assert names == {True: decayed, False: {"bias", "scale"} | relative}


@pytest.mark.parametrize("scan_layers", [False, True])
def test_attention_biases_decay_on_request_as_by_dimensions(scan_layers: bool) -> None:
    """The paper's code decays whatever has not one dimension; scanned layers have one more."""
    fields = dict(attention="hyla_deep", positions="relative", scan_layers=scan_layers)
    params = params_of(Features(3, 2), **fields)

    def by_dimensions(path: Any, leaf: Any) -> bool:
        return leaf.ndim - (scan_layers and "blocks/" in path_of(path)) != 1

    expected = jax.tree_util.tree_map_with_path(by_dimensions, params)
    assert decay_mask(params, attention_biases=True) == expected
    assert expected != decay_mask(params)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), params)
    optimizer = make_optimizer(OptimizerConfig(decay_attention_biases=True), lambda _: 1.0)
    zeros = jax.tree.map(np.zeros_like, ones)
    update, _ = jax.jit(optimizer.update)(zeros, jax.jit(optimizer.init)(ones), ones)
    assert jax.tree.map(lambda leaf: bool((np.asarray(leaf) != 0).all()), update) == expected
