"""muP: the table of docs/choices.md by parameter, and nothing at the base width."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hyla_lm.attention.spec import VARIANTS
from hyla_lm.errors import UserError
from hyla_lm.export.description import describe_model, model_config_of
from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.width import Factors, factors_of, tied_logit_scale
from hyla_lm.optim import OptimizerConfig, make_optimizer
from hyla_lm.parallel.sharding import path_of
from hyla_lm.run.program import init_params
from tests.model.small_model import VOCABULARY, shapes, small, tokens

# 4 times as wide, of twice as many heads of twice the size.
GROWN = dict(base_width=4, base_head_dim=2)
SAME, MATRIX, READOUT = Factors(), Factors(1, 1 / 4), Factors(4**-0.5, 1 / 4)
ALWAYS = {
    "embed/table": Factors(4**0.5, 1),
    "attention/out/kernel": MATRIX,
    "attention/out/bias": SAME,
    "attention_norm/scale": SAME,
    "final_norm/bias": SAME,
}
SCALED_SCORES = {
    "attention/query/kernel": Factors(2**-0.5, 2**-0.5 / 4),
    "attention/query/bias": Factors(2**-0.5, 2**-0.5),
    "attention/key/kernel": MATRIX,
    "attention/key/bias": SAME,
}
NORMED_SCORES = {
    "attention/query/kernel": Factors(1, 2**-0.5 / 4),
    "attention/query/bias": Factors(1, 2**-0.5),
    "attention/key/kernel": Factors(1, 2**-0.5 / 4),
    "attention/key/bias": Factors(1, 2**-0.5),
}
LINEAR_VALUES = {"attention/value/kernel": MATRIX, "attention/value/bias": SAME}
GENERATED_VALUES = {
    "attention/value/kernel": Factors(2**-0.5, 1 / 8),
    "attention/value/bias": Factors(2**-0.5, 1 / 2),
}
PER_HEADS = Factors(1, 1 / 2)
OF_VARIANT = {
    "softmax": SCALED_SCORES | LINEAR_VALUES,
    "linear_rms_head": NORMED_SCORES | LINEAR_VALUES,
    "hyla_softmax": SCALED_SCORES | GENERATED_VALUES,
    "hyla_gated": NORMED_SCORES | GENERATED_VALUES | {"attention/pair_gate": PER_HEADS},
    "query_composed": SCALED_SCORES
    | LINEAR_VALUES
    | {"attention/pair_after/kernel": Factors(1, 1 / 8)},
    "hyla_deep": NORMED_SCORES | GENERATED_VALUES | {"attention/deep_kernel": MATRIX},
}
MOE = {"feedforward/up": MATRIX, "feedforward/down": MATRIX, "feedforward/gate": READOUT}
ELSEWHERE: list[tuple[dict[str, Any], Tokens | Features, dict[str, Factors]]] = [
    (dict(feedforward="swiglu"), Tokens(5), {"feedforward/gate/kernel": MATRIX}),
    (dict(feedforward="moe"), Tokens(5), MOE),
    (dict(positions="relative"), Tokens(5), {"attention/relative_bias": SAME}),
    (dict(positions="learned"), Tokens(5), {"position_embed/table": Factors(2, 1)}),
    (dict(tie_embeddings=False), Tokens(5), {"head/kernel": READOUT, "head/bias": SAME}),
    (dict(), Features(3, 2), {"embed/kernel": SAME, "embed/bias": SAME, "head/kernel": READOUT}),
]


def of_first_layer(config: ModelConfig, io: Tokens | Features) -> dict[str, Factors]:
    """The factors of every parameter that the model has, by path within its block."""
    inputs = jnp.zeros((1, 1, 3)) if isinstance(io, Features) else tokens()
    leaves = jax.tree_util.tree_leaves_with_path(shapes(Decoder(config, io), inputs))
    found = {path_of(path): factors_of(config, path_of(path)) for path, _ in leaves}
    return {path.removeprefix("blocks/block_0/"): factors for path, factors in found.items()}


def assert_has(found: dict[str, Factors], wanted: dict[str, Factors]) -> None:
    assert {path: found[path] for path in wanted} == wanted


@pytest.mark.parametrize("variant", VARIANTS)
def test_factors_of_attention(variant: str) -> None:
    found = of_first_layer(small(num_layers=1, attention=variant, **GROWN), Tokens(VOCABULARY))
    assert_has(found, ALWAYS | OF_VARIANT.get(variant, {}))


@pytest.mark.parametrize(("fields", "io", "wanted"), ELSEWHERE)
def test_factors_of_what_stands_around(
    fields: dict[str, Any], io: Tokens | Features, wanted: dict[str, Factors]
) -> None:
    assert_has(of_first_layer(small(num_layers=1, **fields, **GROWN), io), wanted)


def test_at_the_base_width_every_factor_is_1() -> None:
    config = small(num_layers=1, attention="hyla_deep", base_width=16, base_head_dim=4)
    assert set(of_first_layer(config, Tokens(VOCABULARY)).values()) == {SAME}


def test_a_parameter_without_a_rule_is_refused() -> None:
    with pytest.raises(UserError, match=r"no rule for the parameter blocks/block_0/new/kernel"):
        factors_of(small(**GROWN), "blocks/block_0/new/kernel")


def test_a_wide_model_is_the_standard_one_times_its_factors() -> None:
    models = (
        Decoder(small(num_layers=1, attention="hyla", scan_layers=True, **fields), Tokens(5))
        for fields in ({}, GROWN)
    )
    plain, grown = (jax.jit(partial(init_params, model))(jax.random.key(0)) for model in models)
    value = jax.tree_util.tree_map(lambda a, b: b / a, plain, grown)
    attention = value["blocks"]["block_0"]["attention"]
    np.testing.assert_allclose(attention["value"]["kernel"], 2**-0.5, rtol=1e-6)
    np.testing.assert_allclose(attention["out"]["kernel"], 1, rtol=0)
    np.testing.assert_allclose(value["embed"]["table"], 2, rtol=0)


def test_the_decay_of_a_parameter_does_not_follow_its_factor() -> None:
    config = OptimizerConfig(weight_decay=0.5, b1=0, b2=0)
    params = {"kernel": jnp.ones(2)}
    optimizer = make_optimizer(config, optax.constant_schedule(0.1), rate_of=lambda _: 0.25)
    state = optimizer.init(params)
    still, _ = optimizer.update({"kernel": jnp.zeros(2)}, state, params)
    moved, _ = optimizer.update({"kernel": jnp.ones(2)}, state, params)
    np.testing.assert_allclose(still["kernel"], -0.1 * 0.5, rtol=1e-6)
    np.testing.assert_allclose(moved["kernel"], -0.1 * (0.25 + 0.5), rtol=1e-5)


@pytest.mark.parametrize(
    ("scaled", "base", "scale"),
    [(True, None, 16**-0.5), (True, 4, 1 / 8), (False, 4, 1 / 4)],
)
def test_tied_logits_fall_with_width_and_are_exported_so(
    scaled: bool, base: int | None, scale: float
) -> None:
    config = small(
        num_layers=1, scale_tied_logits=scaled, base_width=base, value_dim=4, max_length=8
    )
    assert tied_logit_scale(config) == scale
    entries = describe_model(config, 5, 8)
    assert entries["logit_scale"] == scale
    assert model_config_of(entries, "config.json") == config
