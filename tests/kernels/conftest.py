"""TPU kernels on this machine: memory that they have not written is NaN."""

from collections.abc import Iterator

import pytest
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.kernels import unrolled

SIMULATION = pltpu.InterpretParams(uninitialized_memory="nan")


@pytest.fixture
def interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As loops of XLA; tests of `make test-full`, which take longer, as `simulated`."""
    monkeypatch.setattr(unrolled, "UNROLL", False)
    of_full = request.node.get_closest_marker("full") is not None
    with pltpu.force_tpu_interpret_mode(SIMULATION if of_full else True):
        yield


@pytest.fixture
def simulated(interpreted: None) -> Iterator[None]:
    """Blocks are fetched and written when a TPU does it; this takes longer."""
    with pltpu.force_tpu_interpret_mode(SIMULATION):
        yield
