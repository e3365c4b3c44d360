"""What a golden fixture holds: trees under slash-joined names, and results to compare with."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def tree_of(
    arrays: dict[str, np.ndarray], prefix: str, renamed: Callable[[str], str] = str
) -> dict[str, Any]:
    """The nested arrays below a prefix, by the paths that `renamed` gives them."""
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        if path.startswith(f"{prefix}/"):
            *folders, leaf = renamed(path[len(prefix) + 1 :]).split("/")
            node = tree
            for folder in folders:
                node = node.setdefault(folder, {})
            node[leaf] = jnp.asarray(array)
    return tree


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Each array of a tree, absolutely and relatively."""

    def close(found: Any, wanted: Any) -> None:
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)

    jax.tree.map(close, actual, expected)
