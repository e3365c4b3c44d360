"""Loops and bytes of a small config, against arithmetic by hand."""

import json
from typing import Any

import pytest

from tests.scripts import output_of


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return json.loads(output_of("tests.tools.plan.small_plans", devices=4))


# A layer's projections have D x HK weights and a bias for query, key and value, HK x D and a bias
# for out; the feed-forward D x F and F x D with biases; each norm a scale and a bias.
PARAMETERS = (
    40 * 16  # table
    + 3 * (3 * (16 * 16 + 16) + 16 * 16 + 16)
    + 3 * (16 * 48 + 48 + 48 * 16 + 16)
    + 3 * 4 * 16
    + 2 * 16
)
NUMBERS = 4 * 16  # room for some sums of metrics in float32


def test_loops(plan: dict[str, Any]) -> None:
    """Two micro-batches of three layers, forward and backward."""
    assert sorted(plan["loops"]) == [2, 2 * 3, 2 * 3]
    assert not any("trips" in note for note in plan["notes"])


def test_bytes_of_the_state(plan: dict[str, Any]) -> None:
    """Parameters in float32, and two moments of each with two counters of steps."""
    assert plan["memory"] == [4 * PARAMETERS, 2 * 4 * PARAMETERS + 2 * 4]


def test_bytes_that_cross(plan: dict[str, Any]) -> None:
    """Each gradient once a step, in float32, not once a micro-batch."""
    found = plan["collectives"]
    assert {(x[0], tuple(x[1])) for x in found} == {("all-reduce", ("replica", "data"))}
    assert 4 * PARAMETERS < sum(x[2] for x in found) < 4 * PARAMETERS + NUMBERS
    assert "gradients" in {x[3] for x in found}
