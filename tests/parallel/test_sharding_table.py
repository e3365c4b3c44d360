"""How parameters of whole models are split on a mesh, and the bytes that a device then holds."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.mesh import AXES
from hyla_lm.parallel.sharding import bytes_on_device, parameter_spec, path_of, state_sharding

SIZES = {"num_layers": 1, "model_dim": 32, "num_heads": 4, "head_dim": 8, "mlp_dim": 64}
VOCABULARY = 48
MESH = jax.sharding.AbstractMesh((2, 2, 2, 2), AXES)


def params_of(**settings: Any) -> Any:
    model = Decoder(ModelConfig(**{**SIZES, **settings}), Tokens(VOCABULARY))
    tokens = jnp.zeros((1, 1), int)
    return jax.eval_shape(lambda key: model.init(key, tokens)["params"], jax.random.key(0))


def splits(**settings: Any) -> dict[str, tuple[str | None, ...]]:
    """The axes that split each parameter, by its path inside of the only block."""
    leaves = jax.tree_util.tree_leaves_with_path(params_of(**settings))
    return {
        path_of(path).removeprefix("blocks/block_0/"): tuple(
            parameter_spec(path_of(path), leaf.shape, MESH)
        )
        for path, leaf in leaves
    }


PLAIN = {
    **{f"attention/{name}/kernel": ("fsdp", "model", None) for name in ("query", "key", "value")},
    **{f"attention/{name}/bias": ("model", "fsdp") for name in ("query", "key", "value")},
    "attention/out/kernel": ("model", None, "fsdp"),
    "attention/out/bias": ("fsdp",),
    "attention_norm/scale": ("fsdp",),
    "attention_norm/bias": ("fsdp",),
    "feedforward/up/kernel": ("fsdp", "model"),
    "feedforward/up/bias": ("fsdp",),
    "feedforward/down/kernel": ("model", "fsdp"),
    "feedforward/down/bias": ("fsdp",),
    "feedforward_norm/scale": ("fsdp",),
    "feedforward_norm/bias": ("fsdp",),
    "final_norm/scale": ("fsdp",),
    "final_norm/bias": ("fsdp",),
    "embed/table": ("model", "fsdp"),
    "head/kernel": ("fsdp", "model"),
}


def test_the_whole_model() -> None:
    found = splits(attention="hyla", tie_embeddings=False)
    assert {path: found[path] for path in PLAIN} == PLAIN


def test_every_other_part_of_a_model() -> None:
    deep = splits(attention="hyla_deep", positions="relative", feedforward="moe")
    assert deep["attention/deep_kernel"] == (None, "fsdp", None)
    assert deep["attention/relative_bias"] == (None, "fsdp")
    assert deep["feedforward/gate"] == ("fsdp", None)
    assert deep["feedforward/up"] == (None, "fsdp", "model")
    assert deep["feedforward/down"] == (None, "model", "fsdp")
    swiglu = splits(feedforward="swiglu", positions="learned", norm="rms", qk_norm=True)
    assert swiglu["feedforward/gate/kernel"] == ("fsdp", "model")
    assert swiglu["attention/query_norm/scale"] == swiglu["attention_norm/scale"] == ("fsdp",)
    scanned = splits(gated_attention=True, feedforward="swiglu", scan_layers=True)
    assert scanned["attention/query/kernel"] == (None, "fsdp", "model", None)
    assert scanned["attention/gate/kernel"] == (None, "fsdp", "model", None)
    assert scanned["feedforward/gate/kernel"] == (None, "fsdp", "model")


@pytest.mark.parametrize(("heads", "axis"), [(2, "model"), (1, None)])
def test_heads_of_keys_and_values_that_the_model_axis_does_not_divide_stay_whole(
    heads: int, axis: str | None
) -> None:
    found = splits(attention="softmax", num_kv_heads=heads)
    assert found["attention/query/kernel"] == ("fsdp", "model", None)
    for name in ("key", "value"):
        assert found[f"attention/{name}/kernel"] == ("fsdp", axis, None)
        assert found[f"attention/{name}/bias"] == (axis, "fsdp")


def test_a_device_holds_its_part_of_what_is_split() -> None:
    params = {"head": {"kernel": jnp.zeros((32, 6))}, "out": {"bias": jnp.zeros(7)}}
    layout = state_sharding(params, MESH)
    params = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, layout
    )
    assert bytes_on_device(params) == 4 * (32 * 6 // 4 + 7)
