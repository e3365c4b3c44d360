"""Train steps under fsdp 4 x data 2, beside one device, and what crosses devices in them, as JSON.

Run with JAX_NUM_CPU_DEVICES=8. A step is plain descent at rate 1, so new parameters are the old
ones less the gradient of a token. What crosses is read from the step before XLA compiles it: its
kind, dtype and whole size in elements. One process adds up without gloo, so the reductions of
TPUs can be run in it too.
"""

import json
import math
import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.loss import cross_entropy
from hyla_lm.parallel import batch_sums
from hyla_lm.parallel.mesh import MeshConfig, make_mesh
from hyla_lm.parallel.sharding import batch_sharding, state_sharding
from hyla_lm.train_step import TrainState, make_train_step
from tests.model.small_model import QUICK_COMPILE, VOCABULARY, parameters, small, tokens

IDS = tokens(batch=16)
CHUNK = 5  # three chunks of logits
FSDP = 4
ONE_LAYER = small(attention="hyla", num_layers=1)
SCANNED = dict(dtype="bfloat16", scan_layers=True, remat=True, tie_embeddings=False)
# Name: the model, the micro-batches of a step, and where gradients are added up as.
RUNS: dict[str, tuple[ModelConfig, int, str]] = {
    "float32": (ONE_LAYER, 1, "tpu"),
    "scanned": (small(attention="softmax", **SCANNED), 2, "tpu"),
    "on_cpu": (ONE_LAYER, 1, "cpu"),
}
OPERATION = re.compile(
    r'"stablehlo\.(all_gather|reduce_scatter|all_reduce)"\(.*?\) <\{.*?'
    r"\}> *(?:\(\{.*?\}\) *)?: \(tensor<([^>]*)>\) -> tensor<([^>]*)>",
    re.S,
)


def train_step(config: ModelConfig, micro_batches: int) -> Any:
    model = Decoder(config, Tokens(VOCABULARY))

    def loss(params: Any, batch: Any, key: Any) -> tuple[Pair, Metrics]:
        ids = batch["tokens"]
        hidden: Any = model.apply({"params": params}, ids, method="hidden")
        head: Any = model.apply({"params": params}, method="output_head")
        sums = cross_entropy(head, hidden, ids, jnp.ones(ids.shape), CHUNK)
        return (sums.objective, jnp.float32(ids.size)), {}

    step = make_train_step(loss, optax.sgd(1.0), micro_batches, 0, gather_dtype=config.dtype)
    return jax.jit(step, compiler_options=QUICK_COMPILE)


@cache
def state_of(config: ModelConfig) -> TrainState:
    params = jax.device_get(parameters(Decoder(config, Tokens(VOCABULARY)), IDS))
    return TrainState(jnp.int32(0), params, optax.sgd(1.0).init(params))


@cache
def alone(config: ModelConfig, micro_batches: int) -> tuple[TrainState, Any]:
    """A step of one device."""
    step = train_step(config, micro_batches)
    return jax.device_get(step(state_of(config), {"tokens": IDS}))


def run(config: ModelConfig, micro_batches: int, platform: str) -> dict[str, Any]:
    batch_sums.platform = lambda: platform
    expected, expected_output = alone(config, micro_batches)
    start, mesh = state_of(config), make_mesh(MeshConfig(fsdp=FSDP))
    with jax.set_mesh(mesh):
        placed = jax.device_put(start, state_sharding(start, mesh))
        batch = {"tokens": jax.device_put(IDS, batch_sharding(mesh))}
        lowered = train_step(config, micro_batches).lower(placed, batch)
        found, output = jax.device_get(lowered.compile()(placed, batch))

    def apart(a: np.ndarray, b: np.ndarray, before: np.ndarray) -> float:
        return float(abs(a - b).max() / abs(b - before).max())

    return {
        "apart": max(
            jax.tree.leaves(jax.tree.map(apart, found.params, expected.params, start.params))
        ),
        "losses": [float(x.objective[0]) for x in (output, expected_output)],
        "crossing": crossing(lowered.as_text()),
        "sizes": sorted(x.size for x in jax.tree.leaves(start.params)),
    }


def crossing(text: str) -> list[tuple[str, str, int]]:
    found = []
    for kind, operand, result in OPERATION.findall(text):
        *shape, dtype = (result if kind == "all_gather" else operand).split("x")
        found.append((kind, dtype, math.prod(map(int, shape))))
    return sorted(found)


if __name__ == "__main__":
    print(json.dumps({name: run(*given) for name, given in RUNS.items()}))
