"""Norms of gradients, updates and parameters, of the whole model and of each layer.

A layer is a block, or what stands beside the blocks: `embed`, `final_norm`, `head`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.metrics import HostMetrics

KINDS = ("gradient_norm", "update_norm", "parameter_norm")
BLOCKS = "blocks"


@dataclass(frozen=True)
class Norms:
    """Sums over steps of the norms of each kind, of all parameters and then of each layer.

    They are one array, so that a step gives the host one more array and not one a layer.
    """

    sum_3xL: jax.Array
    count: jax.Array
    layers: tuple[str, ...]

    def metrics(self) -> HostMetrics:
        """The sum and count of each norm by its name; waits for the device."""
        sum_3xL, count = jax.device_get((self.sum_3xL, self.count))
        names = ["", *(f"/{layer}" for layer in self.layers)]
        return {
            f"{kind}{name}": (total, float(count))
            for kind, sums in zip(KINDS, sum_3xL.tolist(), strict=True)
            for name, total in zip(names, sums, strict=True)
        }


jax.tree_util.register_dataclass(Norms, ["sum_3xL", "count"], ["layers"])


def norms_of(gradients: Any, updates: Any, params: Any, scanned: bool) -> Norms:
    """The norms of one step; see `by_layer`."""
    squares = [layer_squares(tree, scanned) for tree in (gradients, updates, params)]
    rows = [jnp.stack([sum(of.values(), jnp.zeros(())), *of.values()]) for of in squares]
    return Norms(jnp.sqrt(jnp.stack(rows)), jnp.ones(()), tuple(squares[0]))


def layer_squares(tree: Any, scanned: bool) -> dict[str, jax.Array]:
    """The sum of squares of each layer of a tree of parameters."""

    def squares(name: str) -> Any:
        repeats = int(scanned and name == BLOCKS)  # their axis stays
        return jax.tree.map(
            lambda leaf: jnp.sum(jnp.square(leaf), axis=range(repeats, leaf.ndim)), tree[name]
        )

    of_layers = by_layer({name: squares(name) for name in tree}, scanned)
    return {name: sum(leaves[1:], leaves[0]) for name, leaves in of_layers.items()}


def by_layer(tree: Any, scanned: bool) -> dict[str, list[jax.Array]]:
    """The leaves of each layer of a tree like the parameters, the blocks first and in order.

    In `scanned` blocks the first axis of a leaf is that of the repeats of the attention pattern.
    """
    blocks, layers = tree[BLOCKS], {}
    for position in range(len(blocks)):
        leaves = jax.tree.leaves(blocks[f"block_{position}"])
        for repeat in range(len(leaves[0]) if scanned else 1):
            of_repeat = [leaf[repeat] for leaf in leaves] if scanned else leaves
            layers[repeat * len(blocks) + position] = of_repeat
    of_blocks = {f"block_{layer}": layers[layer] for layer in sorted(layers)}
    others = {name: jax.tree.leaves(tree[name]) for name in sorted(tree) if name != BLOCKS}
    return of_blocks | others
