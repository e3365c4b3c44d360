"""What a step does beside its update leaves every bit of the update as it is.

Another program may round otherwise; what XLA makes of it for users does not.
"""

from pathlib import Path

import pytest

from tests.run.test_bad_updates import SKIP, SPIKES, assert_same_bits, steps_of

STEPS = 4
CLIPPED = "OptimizerConfig.clip_norm=1e-3"
LAYERS = "LogConfig.layers=True"
UNMEASURED = "LogConfig.layers=False"


@pytest.mark.parametrize(
    "beside",
    [
        (LAYERS, SKIP, *SPIKES),
        pytest.param((LAYERS,), marks=pytest.mark.full),
        pytest.param((UNMEASURED, SKIP, *SPIKES), marks=pytest.mark.full),
    ],
)
def test_norms_by_layer_and_a_policy_that_finds_nothing(
    beside: tuple[str, ...], tiny_gin: Path
) -> None:
    [*_, plain], _ = steps_of(tiny_gin, STEPS, CLIPPED, UNMEASURED)
    [*_, watched], outputs = steps_of(tiny_gin, STEPS, CLIPPED, *beside)
    assert (outputs[-1].norms is not None) == (LAYERS in beside)
    assert_same_bits(watched.params, plain.params)
    optimizer = getattr(watched.opt_state, "optimizer", watched.opt_state)
    assert_same_bits(optimizer, plain.opt_state)
