"""Code losses of rows that are divided over four devices, beside one device; prints JSON.

Run with JAX_NUM_CPU_DEVICES=4. Queries and keys are linear in a parameter, and losses are summed
over the batch as a train step sums them.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.attention.attend import VARIANTS, make_request
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.batch_sums import summed_over_batch
from hyla_lm.parallel.mesh import MeshConfig, make_mesh
from hyla_lm.parallel.sharding import batch_sharding
from hyla_lm.tasks.code_loss import CodeLoss, term_of
from tests.model.small_model import QUICK_COMPILE, small

BATCH, LENGTH, HEADS, SIZE = 8, 5, 2, 3
MESHES = (MeshConfig(data=1), MeshConfig(data=2, fsdp=2))


def batch_of() -> dict[str, Any]:
    """Documents of other lengths in each row, and two functions."""
    rng = np.random.default_rng(0)
    starts = rng.random((BATCH, LENGTH)) < np.linspace(0, 0.9, BATCH)[:, None]
    return {
        "x": rng.normal(size=(BATCH, LENGTH, HEADS, SIZE)).astype(np.float32),
        "segments": np.cumsum(starts, axis=1),
        "terms": np.array([[0, 1], [2, 3]])[np.arange(BATCH) % 2],
    }


def found_on(mesh: MeshConfig) -> Any:
    task = FuzzyLogic(sequence_length=LENGTH).prepare_task(BATCH)
    model = Decoder(small(), task.io)
    terms = [term_of(CodeLoss(kind), task, model) for kind in ("entropy", "contrastive")]

    def sums(params: Any, batch: Any, _: Any) -> Any:
        def total(params: Any) -> Any:
            k = batch["x"] @ params["kernel"]
            spec = VARIANTS["linear"]
            request = make_request(
                jnp.flip(k, 1), k, k, spec, causal=True, segment_ids=batch["segments"]
            )
            losses = jnp.stack([term(request, batch) for term in terms]) * len(k)
            return jnp.sum(losses * jnp.array([1.0, 0.3])), losses

        grads, losses = jax.grad(total, has_aux=True)(params)
        return grads, losses

    made = make_mesh(mesh, jax.devices()[: mesh.data * mesh.fsdp])
    step = jax.jit(summed_over_batch(sums, "float32"), compiler_options=QUICK_COMPILE)
    with jax.set_mesh(made):
        placed = jax.device_put(batch_of(), batch_sharding(made))
        grads, losses = step({"kernel": jnp.eye(SIZE) + 0.1}, placed, jnp.int32(0))
    return {"losses": losses.tolist(), "gradients": grads["kernel"].tolist()}


if __name__ == "__main__":
    print(json.dumps([found_on(mesh) for mesh in MESHES]))
