"""TPU kernels on this machine: memory that they have not written is NaN."""

from collections.abc import Iterator
from typing import Any

import pytest
from jax._src.lax import slicing
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention import lanes

SIMULATION = pltpu.InterpretParams(uninitialized_memory="nan")
starts_of = slicing._dynamic_slice_indices


def starts_from_0(operand: Any, starts: Any, may_be_negative: Any) -> Any:
    """Where slices start. To count negative ones from the end is a third of interpreted kernels."""
    return starts_of(operand, starts, False)


@pytest.fixture
def interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As loops of XLA; tests of `make test-full`, which take longer, as `simulated`."""
    monkeypatch.setattr(lanes, "UNROLL", False)
    monkeypatch.setattr(slicing, "_dynamic_slice_indices", starts_from_0)
    of_full = request.node.get_closest_marker("full") is not None
    with pltpu.force_tpu_interpret_mode(SIMULATION if of_full else True):
        yield


@pytest.fixture
def simulated(interpreted: None) -> Iterator[None]:
    """Blocks are fetched and written when a TPU does it; this takes longer."""
    with pltpu.force_tpu_interpret_mode(SIMULATION):
        yield
