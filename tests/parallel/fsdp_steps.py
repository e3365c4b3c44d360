"""Train steps under fsdp 4 x data 2, beside one device, and what crosses devices in them, as JSON.

Run with JAX_NUM_CPU_DEVICES=8. A step is plain descent at rate 1, so new parameters are the old
ones less the gradient of a token. What crosses is read from the step before XLA compiles it: its
kind, dtype and whole size in elements. One process adds up without gloo, so the reductions of
TPUs can be run in it too.
"""

import json
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.loss import cross_entropy
from hyla_lm.parallel import batch_sums
from hyla_lm.parallel.mesh import MeshConfig, batch_sharding, make_mesh, state_sharding
from hyla_lm.train_step import TrainState, make_train_step
from tests.model.small_model import QUICK_COMPILE, VOCABULARY, parameters, small, tokens

CHUNK = 5  # three chunks of logits
FSDP = 4
SCANNED = {"dtype": "bfloat16", "scan_layers": True, "remat": True}
# Name: the model, the micro-batches of a step, and where gradients are added up as.
RUNS: dict[str, tuple[ModelConfig, int, str]] = {
    "float32": (small(attention="hyla"), 1, "tpu"),
    "bfloat16": (small(attention="hyla", dtype="bfloat16", tie_embeddings=False), 1, "tpu"),
    "scanned": (small(attention="softmax", **SCANNED), 2, "tpu"),
    "on_cpu": (small(attention="hyla"), 1, "cpu"),
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
    return model, jax.jit(step, compiler_options=QUICK_COMPILE)


def run(config: ModelConfig, micro_batches: int, platform: str) -> dict[str, Any]:
    batch_sums.platform = lambda: platform
    model, step = train_step(config, micro_batches)
    ids = tokens(batch=16)
    params = parameters(model, ids)
    state = TrainState(jnp.int32(0), params, optax.sgd(1.0).init(params))
    alone, alone_output = jax.device_get(step(state, {"tokens": ids}))
    mesh = make_mesh(MeshConfig(fsdp=FSDP))
    with jax.set_mesh(mesh):
        placed = jax.device_put(state, state_sharding(state, mesh))
        batch = {"tokens": jax.device_put(ids, batch_sharding(mesh))}
        text = step.lower(placed, batch).as_text()
        found, output = jax.device_get(step(placed, batch))

    def apart(a: jax.Array, b: jax.Array, before: jax.Array) -> float:
        return float(abs(a - b).max() / abs(b - before).max())

    return {
        "apart": max(jax.tree.leaves(jax.tree.map(apart, found.params, alone.params, params))),
        "losses": [float(x.objective[0]) for x in (output, alone_output)],
        "crossing": crossing(text),
        "sizes": sorted(x.size for x in jax.tree.leaves(params)),
    }


def crossing(text: str) -> list[tuple[str, str, int]]:
    found = []
    for kind, operand, result in OPERATION.findall(text):
        *shape, dtype = (result if kind == "all_gather" else operand).split("x")
        found.append((kind, dtype, math.prod(map(int, shape))))
    return sorted(found)


if __name__ == "__main__":
    print(json.dumps({name: run(*given) for name, given in RUNS.items()}))
