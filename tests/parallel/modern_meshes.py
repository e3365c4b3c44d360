"""Loss and gradients of models with modern parts on meshes of 4 devices, beside one device.

Run with JAX_NUM_CPU_DEVICES=4. It prints, in JSON, one number a model and mesh: the largest
difference of a gradient relative to its largest entry.
"""

import json
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.loss import cross_entropy
from hyla_lm.parallel.mesh import MeshConfig, make_mesh
from hyla_lm.parallel.sharding import batch_sharding, state_sharding
from tests.model.small_model import QUICK_COMPILE, VOCABULARY, parameters, small, tokens

IDS = tokens(batch=4)
PARTS: dict[str, Any] = dict(norm="rms", qk_norm=True, gated_attention=True, logit_soft_cap=0.5)
GROUPED = small(num_layers=1, attention="softmax", num_heads=4, num_kv_heads=2, **PARTS)
HYLA = small(num_layers=1, attention="hyla", feedforward="swiglu", **PARTS)
# Two heads of keys and values are whole on a model axis of 4, and split on one of 2.
RUNS = (
    (GROUPED, MeshConfig(data=1, model=4)),
    (GROUPED, MeshConfig(data=1, fsdp=2, model=2)),
    (HYLA, MeshConfig(data=1, fsdp=2, model=2)),
)


def gradients(model: Decoder, params: Any, ids: jax.Array) -> Any:
    def loss(params: Any, ids: jax.Array) -> jax.Array:
        hidden = model.apply({"params": params}, ids, method="hidden")
        head: Any = model.apply({"params": params}, method="output_head")
        return cross_entropy(head, hidden, ids, jnp.ones(ids.shape), 6, 0.1).objective

    return jax.jit(jax.value_and_grad(loss), compiler_options=QUICK_COMPILE)(params, ids)


@cache
def alone(config: ModelConfig) -> tuple[Any, Any]:
    """Parameters, and the loss and the gradients that one device finds."""
    model = Decoder(config, Tokens(VOCABULARY))
    params = parameters(model, IDS)
    return params, jax.device_get(gradients(model, params, IDS))


def main() -> None:
    worst = []
    for config, mesh_config in RUNS:
        model = Decoder(config, Tokens(VOCABULARY))
        params, expected = alone(config)
        mesh = make_mesh(mesh_config)
        with jax.set_mesh(mesh):
            placed = jax.device_put(params, state_sharding(params, mesh))
            found = jax.device_get(
                gradients(model, placed, jax.device_put(IDS, batch_sharding(mesh)))
            )
        apart = jax.tree.map(lambda a, b: abs(a - b).max() / abs(b).max(), found, expected)
        worst.append(max(map(float, jax.tree.leaves(apart))))
    print(json.dumps(worst))


if __name__ == "__main__":
    main()
