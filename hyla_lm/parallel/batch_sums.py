"""Sums over a batch that devices share: parameters gathered once, gradients reduced once."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from hyla_lm.attention.chips import platform
from hyla_lm.parallel.mesh import REPLICATED, dividing_mesh
from hyla_lm.parallel.sharding import parameter_spec, path_of

# Parameters that are used only in the dtype of activations, and so are gathered in it. What a
# layer multiplies by once stays in it. Tables and heads have sums of many gradients: float32.
MATRICES = r"(^|/)(kernel|table|feedforward/(up|down))$"
SUMMED_LOCALLY = r"(^|/)(table|head/kernel)$"


def summed_over_batch(local_sums: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    """local_sums(params, batch, key) over the whole batch, added up from each device's rows.

    local_sums returns gradients of the parameters and other sums. It sees whole parameters, those
    of layers in `dtype`. Gradients come back in float32, split as parameters are. XLA itself would
    move a parameter for every use of it, a token table for every chunk of logits. Meshes with a
    `model` axis are left to it.
    """

    def of_whole_batch(params: Any, batch: Any, key: jax.Array) -> Any:
        mesh = dividing_mesh()
        if mesh is None or mesh.shape.get("model", 1) > 1:
            return local_sums(params, batch, key)
        axes = mesh.axis_names
        layout = jax.tree_util.tree_map_with_path(
            lambda path, x: _split(path_of(path), x.shape, mesh), params
        )

        def everywhere(shards: Any, batch: Any, key: jax.Array) -> Any:
            gather = partial(_gathered, dtype=jnp.dtype(dtype))
            whole = jax.tree_util.tree_map_with_path(gather, shards, layout)
            gradients, sums = local_sums(whole, batch, key)
            reduced = jax.tree.map(lambda x, spec: _reduced(x, spec, axes), gradients, layout)
            return reduced, jax.lax.psum(sums, axes)

        return jax.shard_map(
            everywhere,
            in_specs=(layout, PartitionSpec(axes), REPLICATED),
            out_specs=(layout, REPLICATED),
            check_vma=False,
        )(params, batch, key)

    return of_whole_batch


def _split(path: str, shape: tuple[int, ...], mesh: AbstractMesh) -> PartitionSpec:
    """The split of a parameter by `fsdp`; REPLICATED for one that it leaves whole."""
    if mesh.shape.get("fsdp", 1) == 1:
        return REPLICATED
    axes = [axis if axis == "fsdp" else None for axis in parameter_spec(path, shape, mesh)]
    return PartitionSpec(*axes) if "fsdp" in axes else REPLICATED


def _gathered(path: Any, shard: jax.Array, spec: PartitionSpec, dtype: jnp.dtype) -> jax.Array:
    """The whole parameter, which crosses chips in `dtype` if it is used in it."""
    if not spec:
        return shard
    name = path_of(path)
    sent = shard.astype(dtype) if re.search(MATRICES, name) else shard
    whole = jax.lax.all_gather(sent, "fsdp", axis=spec.index("fsdp"), tiled=True)
    return whole.astype(shard.dtype) if re.search(SUMMED_LOCALLY, name) else whole


def _reduced(gradient: jax.Array, spec: PartitionSpec, axes: tuple[str, ...]) -> jax.Array:
    """This device's part of a gradient, added up over all devices."""
    if not spec:
        return jax.lax.psum(gradient, axes)
    split = spec.index("fsdp")
    if platform() == "cpu":
        return _own_part(jax.lax.psum(gradient, axes), split)
    part = jax.lax.psum_scatter(gradient, "fsdp", scatter_dimension=split, tiled=True)
    return jax.lax.psum(part, tuple(axis for axis in axes if axis != "fsdp"))


def _own_part(whole: jax.Array, split: int) -> jax.Array:
    """This device's part of a sum that every device has whole, split by `fsdp` along `split`.

    Processes on CPUs sum through gloo, whose reduce-scatter now and then returns wrong values from
    a few MB on: it sends from a buffer that it already overwrites (jax-ml/jax issue 40830).
    """
    rows = whole.shape[split] // jax.lax.axis_size("fsdp")
    start = jax.lax.axis_index("fsdp") * rows
    return jax.lax.dynamic_slice_in_dim(whole, start, rows, axis=split)
