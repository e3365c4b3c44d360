"""What a step does beside its update leaves every bit of the update as it is.

Another program may round otherwise; what XLA makes of it for users does not.
"""

from pathlib import Path

from tests.faults.test_bad_updates import SKIP, SPIKES, assert_same_bits, steps_of

STEPS = 4
CLIPPED = "OptimizerConfig.clip_norm=1e-3"
UNMEASURED = "LogConfig.layers=False"


def test_norms_by_layer_and_a_policy_that_finds_nothing(tiny_gin: Path) -> None:
    plain, _ = steps_of(tiny_gin, STEPS, CLIPPED, UNMEASURED)
    measured, outputs = steps_of(tiny_gin, STEPS, CLIPPED, "LogConfig.layers=True")
    assert outputs[-1].norms is not None
    assert_same_bits(measured, plain)
    guarded, _ = steps_of(tiny_gin, STEPS, CLIPPED, UNMEASURED, SKIP, *SPIKES)
    assert_same_bits(guarded[-1].params, plain[-1].params)
    assert_same_bits(guarded[-1].opt_state.optimizer, plain[-1].opt_state)
