"""What a device holds of each parameter of whole models, on every kind of mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.mesh import AXES
from hyla_lm.parallel.sharding import sharding_table, table_lines

SIZES = {"num_layers": 2, "model_dim": 32, "num_heads": 4, "head_dim": 8, "mlp_dim": 64}
VOCABULARY = 48


def params_of(**settings: Any) -> Any:
    model = Decoder(ModelConfig(**{**SIZES, **settings}), Tokens(VOCABULARY))
    tokens = jnp.zeros((1, 1), int)
    return jax.eval_shape(lambda key: model.init(key, tokens)["params"], jax.random.key(0))


def table_of(sizes: tuple[int, ...], **settings: Any) -> dict[str, Any]:
    rows = sharding_table(params_of(**settings), jax.sharding.AbstractMesh(sizes, AXES))
    return {row.path: (row.axes, row.bytes_per_device) for row in rows}


# (axes under fsdp 2 and model 2, elements on a device there)
WHOLE_MODEL = {
    "blocks/block_*/attention/query/kernel": (("fsdp", "model", None), 32 * 4 * 8 // 4),
    "blocks/block_*/attention/query/bias": (("model", "fsdp"), 4 * 8 // 4),
    "blocks/block_*/attention/key/kernel": (("fsdp", "model", None), 32 * 4 * 8 // 4),
    "blocks/block_*/attention/key/bias": (("model", "fsdp"), 4 * 8 // 4),
    "blocks/block_*/attention/value/kernel": (("fsdp", "model", None), 32 * 4 * 8 // 4),
    "blocks/block_*/attention/value/bias": (("model", "fsdp"), 4 * 8 // 4),
    "blocks/block_*/attention/out/kernel": (("model", None, "fsdp"), 4 * 8 * 32 // 4),
    "blocks/block_*/attention/out/bias": (("fsdp",), 32 // 2),
    "blocks/block_*/attention_norm/scale": (("fsdp",), 32 // 2),
    "blocks/block_*/attention_norm/bias": (("fsdp",), 32 // 2),
    "blocks/block_*/feedforward/up/kernel": (("fsdp", "model"), 32 * 64 // 4),
    "blocks/block_*/feedforward/up/bias": (("fsdp",), 64 // 2),
    "blocks/block_*/feedforward/down/kernel": (("model", "fsdp"), 64 * 32 // 4),
    "blocks/block_*/feedforward/down/bias": (("fsdp",), 32 // 2),
    "blocks/block_*/feedforward_norm/scale": (("fsdp",), 32 // 2),
    "blocks/block_*/feedforward_norm/bias": (("fsdp",), 32 // 2),
    "final_norm/scale": (("fsdp",), 32 // 2),
    "final_norm/bias": (("fsdp",), 32 // 2),
    "embed/table": (("model", "fsdp"), VOCABULARY * 32 // 4),
}
UNTIED = {**WHOLE_MODEL, "head/kernel": (("fsdp", "model"), 32 * VOCABULARY // 4)}


def on_mesh(table: dict[str, Any], used: set[str]) -> dict[str, Any]:
    """The literal table with only some of its axes, each of two devices, and bytes of float32."""
    found = {}
    for path, (axes, elements) in table.items():
        kept = tuple(axis if axis in used else None for axis in axes)
        lost = sum(axis is not None and axis not in used for axis in axes)
        found[path] = (kept, 4 * elements * 2**lost)
    return found


@pytest.mark.parametrize("attention", ["softmax", "hyla"])
@pytest.mark.parametrize(
    ("sizes", "used"),
    [
        ((1, 2, 1, 1), set()),
        ((1, 1, 2, 1), {"fsdp"}),
        ((1, 1, 1, 2), {"model"}),
        ((2, 2, 2, 2), {"fsdp", "model"}),
    ],
    ids=["data", "fsdp", "model", "all"],
)
def test_the_whole_model(sizes: tuple[int, ...], used: set[str], attention: str) -> None:
    tied = table_of(sizes, attention=attention)
    assert tied == on_mesh(WHOLE_MODEL, used)
    untied = table_of(sizes, attention=attention, tie_embeddings=False)
    assert {path: untied[path] for path in UNTIED} == on_mesh(UNTIED, used)


def test_every_other_part_of_a_model() -> None:
    block = "blocks/block_*"
    deep = table_of((1, 1, 2, 2), attention="hyla_deep", positions="relative", feedforward="moe")
    assert deep[f"{block}/attention/deep_kernel"][0] == (None, "fsdp", None)
    assert deep[f"{block}/attention/relative_bias"][0] == (None, "fsdp")
    assert deep[f"{block}/feedforward/gate"][0] == ("fsdp", None)
    assert deep[f"{block}/feedforward/up"][0] == (None, "fsdp", "model")
    assert deep[f"{block}/feedforward/down"][0] == (None, "model", "fsdp")
    swiglu = table_of((1, 1, 2, 2), feedforward="swiglu", positions="learned")
    assert swiglu[f"{block}/feedforward/gate/kernel"][0] == ("fsdp", "model")
    modern = table_of((1, 1, 2, 2), norm="rms", qk_norm=True, gated_attention=True)
    assert modern[f"{block}/attention/gate/kernel"][0] == ("fsdp", "model", None)
    assert modern[f"{block}/attention/query_norm/scale"][0] == ("fsdp",)
    assert modern[f"{block}/attention/key_norm/scale"][0] == ("fsdp",)
    assert modern[f"{block}/attention_norm/scale"][0] == ("fsdp",)
    both = table_of((1, 1, 2, 2), gated_attention=True, feedforward="swiglu", scan_layers=True)
    assert both[f"{block}/attention/gate/kernel"][0] == (None, "fsdp", "model", None)
    assert both[f"{block}/feedforward/gate/kernel"][0] == (None, "fsdp", "model")
    scanned = table_of((1, 1, 2, 2), scan_layers=True)
    [kernel] = [axes for path, axes in scanned.items() if path.endswith("query/kernel")]
    assert kernel[0] == (None, "fsdp", "model", None)


@pytest.mark.parametrize(("heads", "axis"), [(2, "model"), (1, None)])
def test_heads_of_keys_and_values_that_the_model_axis_does_not_divide_stay_whole(
    heads: int, axis: str | None
) -> None:
    table = table_of((1, 1, 2, 2), attention="softmax", num_kv_heads=heads)
    assert table["blocks/block_*/attention/query/kernel"][0] == ("fsdp", "model", None)
    for name in ("key", "value"):
        assert table[f"blocks/block_*/attention/{name}/kernel"][0] == ("fsdp", axis, None)
        assert table[f"blocks/block_*/attention/{name}/bias"][0] == (axis, "fsdp")


def test_the_table_of_a_run_as_it_is_printed() -> None:
    mesh = jax.sharding.AbstractMesh((1, 1, 2, 2), AXES)
    printed = table_lines(sharding_table(params_of(), mesh))
    kernel = next(line for line in printed if "attention/query/kernel" in line)
    row = "blocks/block_*/attention/query/kernel (2) 32 x 4 x 8 fsdp x model x whole 2,048 B"
    assert kernel.split() == row.split()
    total = sum(elements * (2 if "*" in path else 1) for path, (_, elements) in WHOLE_MODEL.items())
    assert printed[-1].endswith(f"{4 * total:,} B")
