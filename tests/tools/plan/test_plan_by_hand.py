"""Loops, bytes and FLOPs of two small configs, against arithmetic by hand."""

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


def test_products_of_the_scanned_step(plans: dict[str, Any]) -> None:
    """A device has 4 of 16 rows; a product counts once forward and twice backward.

    The definition of attention multiplies all 24 keys with each query, 8 wide for scores and for
    values, in 2 heads. The loss takes the mean logit of each token from one more product, 16 wide.
    """
    tokens = 4 * 24
    layer = 4 * 16 * 16 + 2 * 16 * 48 + 2 * 24 * (8 + 8)
    once = tokens * (3 * layer + 40 * 16)
    assert plans["scanned"]["product_flops"] == 2 * (3 * once + tokens * 16)


def test_flops_a_token(plans: dict[str, Any]) -> None:
    """By the formula a causal query sees half of the keys: (T + 1) / 2."""
    assert plans["scanned"]["flops_per_token"] == 6 * (
        3 * (4 * 16 * 16 + 2 * 16 * 48 + 2 * (8 + 8) * 12.5) + 16 * 40
    )
    assert plans["unrolled"]["flops_per_token"] == 6 * (
        2 * (4 * 24 * 24 + 2 * 24 * 32 + 3 * (8 + 8 + 8) * 10.5) + 24 * 56
    )
