"""Loops and bytes of two small configs, against arithmetic by hand."""

import json
from typing import Any

import pytest

from tests.scripts import output_of


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    return json.loads(output_of("tests.tools.plan.small_plans", devices=4))


# A layer's projections have D x HK weights and a bias for query, key and value, HK x D and a bias
# for out; the feed-forward D x F and F x D with biases; each norm a scale and a bias.
SCANNED_PARAMETERS = (
    40 * 16  # table
    + 3 * (3 * (16 * 16 + 16) + 16 * 16 + 16)
    + 3 * (16 * 48 + 48 + 48 * 16 + 16)
    + 3 * 4 * 16
    + 2 * 16
)
UNROLLED_PARAMETERS = (
    56 * 24
    + 2 * (3 * (24 * 24 + 24) + 24 * 24 + 24)
    + 2 * (24 * 32 + 32 + 32 * 24 + 24)
    + 2 * 4 * 24
    + 2 * 24
)
NUMBERS = 4 * 16  # room for some sums of metrics in float32


def test_loops(plans: dict[str, Any]) -> None:
    """Two micro-batches of three layers, forward and backward; three micro-batches unrolled."""
    assert sorted(plans["scanned"]["loops"]) == [2, 2 * 3, 2 * 3]
    assert plans["unrolled"]["loops"][0] == 3
    assert not any("trips" in note for plan in plans.values() for note in plan["notes"])


def test_bytes_of_the_state(plans: dict[str, Any]) -> None:
    """Parameters in float32, and two moments of each with two counters of steps."""
    for name, count in (("scanned", SCANNED_PARAMETERS), ("unrolled", UNROLLED_PARAMETERS)):
        assert plans[name]["memory"] == [4 * count, 2 * 4 * count + 2 * 4]


@pytest.mark.parametrize(
    ("name", "count", "axes"),
    [
        ("scanned", SCANNED_PARAMETERS, ["data"]),
        ("unrolled", UNROLLED_PARAMETERS, ["replica", "data"]),
    ],
)
def test_bytes_that_cross(plans: dict[str, Any], name: str, count: int, axes: list[str]) -> None:
    """Each gradient once a step, in float32, not once a micro-batch."""
    found = plans[name]["collectives"]
    assert {(x[0], tuple(x[1])) for x in found} == {("all-reduce", tuple(axes))}
    assert 4 * count < sum(x[2] for x in found) < 4 * count + NUMBERS
    assert "gradients" in {x[3] for x in found}
