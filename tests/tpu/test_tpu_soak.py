"""Two hundred hours of faults: the supervisor trains to the end and leaves no bill."""

import pytest

from tests.tpu.soak import EVENTS, FAULTS, HOUR, TRAINING_HOURS, soak

BILL = "Nothing of hyla exists, so nothing is billed."


def test_it_trains_to_the_end_and_leaves_nothing() -> None:
    worlds = [soak(seed) for seed in range(6)]
    for world in worlds:
        assert world.trained >= TRAINING_HOURS and not world.resource and not world.node
        assert world.said[-1] == BILL
        assert world.billed < 1.25 * TRAINING_HOURS
    names = [*EVENTS, "hangs", *[name for faults in FAULTS.values() for name in faults]]
    assert all(any(world.times[name] for world in worlds) for name in names)


@pytest.mark.parametrize("hours", [0.01, 0.5, 3, 40.003])
def test_interrupted_at_any_time_it_deletes_the_slice_and_prints_the_bill(hours: float) -> None:
    world = soak(0, interrupt_at=hours * HOUR)
    assert not world.resource and not world.node
    assert world.said[-2:] == [BILL, "interrupted"]
