"""Two hundred hours of faults: the supervisor trains to the end and leaves no bill."""

from pathlib import Path

import pytest

from tests.tpu.soak import EVENTS, HOUR, REFUSALS, TRAINING_HOURS, Soak, soak, table

PAGE = Path(__file__).parents[2] / "tpu" / "README.md"


@pytest.fixture(scope="module")
def worlds() -> list[Soak]:
    return [soak(seed) for seed in range(8)]


def test_it_ends_trained_with_nothing_left(worlds: list[Soak]) -> None:
    for world in worlds:
        assert world.trained >= TRAINING_HOURS and not world.resource and not world.node
    assert sum(world.now for world in worlds) / len(worlds) > 200 * HOUR


def test_every_fault_happened(worlds: list[Soak]) -> None:
    names = [*EVENTS, "gcloud hangs", *[name for kinds in REFUSALS.values() for name in kinds]]
    for name in names:
        assert all(world.times[name] for world in worlds[:1]), name


def test_what_is_billed_is_mostly_training(worlds: list[Soak]) -> None:
    for world in worlds:
        assert world.billed < 1.25 * TRAINING_HOURS


def test_the_table_of_the_page_is_what_it_prints(worlds: list[Soak]) -> None:
    assert table(worlds[0]) in PAGE.read_text()
