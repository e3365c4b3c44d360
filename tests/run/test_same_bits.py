"""What a step does beside its update leaves every bit of the update as it is.

Another program may round otherwise; what XLA makes of it for users does not.
"""

from pathlib import Path

from tests.run.test_bad_updates import SKIP, SPIKES, assert_same_bits, steps_of

STEPS = 4
CLIPPED = "OptimizerConfig.clip_norm=1e-3"
LAYERS = "LogConfig.layers=True"


def test_norms_by_layer_and_a_policy_that_finds_nothing(tiny_gin: Path) -> None:
    [*_, plain], _ = steps_of(tiny_gin, STEPS, CLIPPED, "LogConfig.layers=False")
    [*_, watched], outputs = steps_of(tiny_gin, STEPS, CLIPPED, LAYERS, SKIP, *SPIKES)
    assert outputs[-1].norms is not None
    assert_same_bits(watched.params, plain.params)
    assert_same_bits(watched.opt_state.optimizer, plain.opt_state)
