"""Golden arrays of independent implementations; they live beside the checkout, not in it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).parents[2].parent / "shared" / "golden"


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, np.ndarray]]:
    """Loads a fixture by name as a dict of arrays."""
    if not FOLDER.is_dir():
        pytest.skip("golden fixtures are not beside the checkout")

    def load(name: str) -> dict[str, np.ndarray]:
        with np.load(FOLDER / f"{name}.npz") as arrays:
            return dict(arrays)

    return load


@pytest.fixture(autouse=True)
def highest_precision() -> Iterator[None]:
    with jax.default_matmul_precision("highest"):
        yield
