"""The decoder: who sees whom (by gradient), positions, dropout, logits, size."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.spec import VARIANTS
from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder, SelfAttention
from tests.model.small_model import (
    LENGTH,
    QUICK_COMPILE,
    TOLERANCE,
    VOCABULARY,
    parameters,
    shapes,
    small,
    tokens,
)


def influence(config: ModelConfig) -> np.ndarray:
    """Largest gradient of each output by each input position, outputs x inputs.

    One layer suffices; with a smooth phi no visible pair is 0 by chance, as it may be under relu.
    """
    model = Decoder(replace(config, num_layers=1, value_activation="silu"), Features(3, 2))
    x = jnp.asarray(np.float32(np.random.default_rng(0).normal(size=(1, LENGTH, 3))))
    params = parameters(model, x)

    def outputs(x: jax.Array) -> jax.Array:
        return model.apply({"params": params}, x)[0].sum(axis=-1)

    gradient = jax.jit(jax.jacrev(outputs), compiler_options=QUICK_COMPILE)(x)[:, 0]
    return np.abs(gradient).max(axis=-1)


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_a_position_sees_itself_and_those_before_it_unless_all(attention: str) -> None:
    fields = {"attention": attention, "positions": "none"}
    np.testing.assert_array_equal(influence(small(**fields)) != 0, np.tri(LENGTH, dtype=bool))
    assert np.all(influence(small(causal=False, **fields)) != 0)


# Rotary positions are in q and k, so that a kernel does not see them; relative ones are its bias.
@pytest.mark.parametrize("positions", ["rotary", "relative"])
def test_a_packed_document_gets_the_logits_it_gets_alone(positions: str) -> None:
    config = small(num_layers=1, attention="hyla", positions=positions)
    model = Decoder(config, Tokens(VOCABULARY))
    row, start = tokens(1), 5
    params = parameters(model, row)
    segments = (jnp.arange(LENGTH) >= start).astype(jnp.int32)[None]
    apply = jax.jit(model.apply)
    packed = apply({"params": params}, row, segment_ids=segments)
    alone = apply({"params": params}, row[:, start:])
    np.testing.assert_allclose(packed[:, start:], alone, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_pattern_repeats_over_the_layers() -> None:
    config = small(attention=("softmax", "hyla_deep"), num_layers=4)
    specs = [config.spec(layer) for layer in range(4)]
    assert specs == [VARIANTS["softmax"], VARIANTS["hyla_deep"]] * 2
    silu = replace(config, value_activation="silu")
    assert silu.spec(0) == VARIANTS["softmax"]
    assert silu.spec(1) == replace(VARIANTS["hyla_deep"], activation="silu")
    blocks = shapes(Decoder(config, Tokens(VOCABULARY)), tokens())["blocks"]
    deep = ["deep_kernel" in blocks[f"block_{layer}"]["attention"] for layer in range(4)]
    assert deep == [False, True, False, True]


def test_attention_dropout_needs_a_key_and_changes_training_alone() -> None:
    config = small(num_layers=1, attention_dropout=0.5)
    model = Decoder(config, Tokens(VOCABULARY))
    variables = {"params": parameters(model, tokens())}
    without = model.clone(config=replace(config, attention_dropout=0.0))
    plain = jax.jit(without.apply)(variables, tokens())
    np.testing.assert_array_equal(jax.jit(model.apply)(variables, tokens()), plain)
    trained = jax.jit(partial(model.apply, dropout=True))
    first, again, other = (
        trained(variables, tokens(), rngs={"dropout": jax.random.key(seed)}) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, plain, atol=0.01)
    assert not np.allclose(first, other, atol=0.01)


def test_the_dropout_mask_is_shared_by_heads_and_examples() -> None:
    layer = SelfAttention(
        small(attention_dropout=0.25), VARIANTS["hyla"], recurrent=False, cache_length=0
    )
    rngs = {"dropout": jax.random.key(0)}
    mask = layer.apply({}, 40, 50, True, rngs=rngs, method="_dropout_mask")
    assert mask.shape == (1, 1, 40, 50)
    assert np.unique(mask).tolist() == [0, np.float32(1 / 0.75)]
    # The share of 2000 draws has a standard deviation of 0.01.
    assert abs(float((mask == 0).mean()) - 0.25) < 0.05
    assert layer.apply({}, 40, 50, False, rngs=rngs, method="_dropout_mask") is None


def test_parameter_count_of_the_c4_model() -> None:
    """V D + 6 (4 D H K + 2 D F + 2 D) + D: the 50M model, whose tied table counts once."""
    model = Decoder(ModelConfig(use_bias=False), Tokens(32_000))
    count = 32_000 * 512 + 6 * (4 * 512**2 + 2 * 512 * 2048 + 2 * 512) + 512
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes(model, tokens()))) == count


@pytest.mark.parametrize("io", [Tokens(VOCABULARY), Features(3, 2)], ids=["tokens", "features"])
def test_bfloat16_activations_give_float32_logits(io: Tokens | Features) -> None:
    model = Decoder(small(dtype="bfloat16"), io)
    inputs = tokens() if isinstance(io, Tokens) else jnp.ones((1, LENGTH, 3))
    params = shapes(model, inputs)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    hidden = partial(model.apply, method=Decoder.hidden)
    assert jax.eval_shape(hidden, {"params": params}, inputs).dtype == jnp.bfloat16
    assert jax.eval_shape(model.apply, {"params": params}, inputs).dtype == jnp.float32
