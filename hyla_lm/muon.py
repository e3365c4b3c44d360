"""Muon: the momentum of each hidden matrix, made orthogonal by a Newton-Schulz iteration.

Keller Jordan's Muon as optax computes it, with the update's size of Liu et al., "Muon is Scalable
for LLM Training" (2025). What is not such a matrix has the direction of another optimizer.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from hyla_lm.parallel.sharding import path_of

MOMENTUM = 0.95  # decay of the mean of gradients
RMS = 0.2  # of an update before the learning rate; AdamW's is about as large
# The axes that each matrix sums over and those that it makes, by the end of its path. They are
# counted from the last: axes before them, of scanned layers and of experts, hold matrices of their
# own. Heads are part of the matrix, as they are of the layer that it computes: `deep_kernel` maps
# the products of code and hidden units of all heads, as its initialisation says too.
MATRICES: tuple[tuple[str, MuonDimensionNumbers], ...] = (
    (r"(query|key|value)/kernel|attention/gate/kernel", MuonDimensionNumbers((-3,), (-2, -1))),
    (r"out/kernel|deep_kernel", MuonDimensionNumbers((-3, -2), (-1,))),
    (
        r"feedforward/(up|gate|down)/kernel|feedforward/(up|down)",
        MuonDimensionNumbers((-2,), (-1,)),
    ),
)


def axes_of(path: str) -> MuonDimensionNumbers | None:
    """The axes of a hidden matrix by its path; None for what Muon does not train.

    That are embeddings, the head, norms, biases and the gate of a mixture of experts.
    """
    found = (axes for pattern, axes in MATRICES if re.search(rf"(^|/)({pattern})$", path))
    return next(found, None)


def muon_and(others: optax.GradientTransformation) -> optax.GradientTransformation:
    """Muon's direction for hidden matrices, with Nesterov's momentum; else that of `others`.

    Muon's has the root mean square RMS, about, whatever the shape of the matrix.
    """
    matrices = optax.chain(
        scale_by_muon(beta=MOMENTUM, nesterov=True, weight_dimension_numbers=_axes),
        optax.stateless(lambda updates, _: _map(lambda path, x: RMS * x * _root(path, x), updates)),
    )
    return optax.partition({"muon": matrices, "others": others}, _labels)


def _map(function: Callable[[str, jax.Array], Any], tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, x: function(path_of(path), x), tree)


def _labels(params: Any) -> Any:
    return _map(lambda path, _: "others" if axes_of(path) is None else "muon", params)


def _axes(matrices: Any) -> Any:
    return _map(lambda path, _: axes_of(path), matrices)


def _root(path: str, matrix: jax.Array) -> float:
    """What an orthogonal matrix is multiplied by for a root mean square of 1."""
    axes = axes_of(path)
    assert axes is not None
    sizes = [math.prod(matrix.shape[axis] for axis in part) for part in axes]
    return math.sqrt(max(sizes))
