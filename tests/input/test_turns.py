"""Turns by weight: every prefix has its shares, and a place alone says whose turn it is."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from hyla_lm.input.mixture import Mixed, shares_of, turns_of

weights = (
    st.floats(1e-6, 1e6)
    | st.integers(1, 1000)
    | st.sampled_from([2e-38, 3.4e38, *(1.618**-i for i in range(9))])
)
mixtures = st.lists(weights, min_size=2, max_size=9)


@given(mixtures, st.integers(0, 2**61))
def test_every_prefix_has_its_shares(weights: list[float], place: int) -> None:
    shares = shares_of(weights)
    turns = turns_of(shares)
    bound = 1 if len(weights) <= 3 else 2
    taken: Counter[int] = Counter()
    for first in range(60):
        source, turn = turns.at(first)
        assert turn == taken[source]
        taken[source] += 1
        assert all(abs(taken[s] - (first + 1) * share) < bound for s, share in enumerate(shares))
    for far in range(place, place + 30):
        source, turn = turns.at(far)
        assert abs(turn - far * shares[source]) < bound


def test_only_the_proportion_of_weights_matters() -> None:
    assert turns_of(shares_of((0.7, 0.2, 0.1))).weights == (7, 2, 1)
    assert turns_of(shares_of((70, 20.0, 10))).weights == (7, 2, 1)
    assert turns_of(shares_of((1e-3, 3))).weights == (1, 3000)


def test_sources_and_epochs_have_orders_of_their_own() -> None:
    order = Mixed(turns_of(shares_of((1, 1))), (300, 300), ("a", "b"))
    rows = [order(place, 0) for place in range(1200)]
    first, second = ([row % 300 for row in rows if row // 300 == source] for source in (0, 1))
    # Two independent orders of 300 rows agree in one place on average.
    agreeing = [(first[:300], second[:300]), (first[:300], first[300:]), (first, range(300))]
    assert all(sum(x == y for x, y in zip(*pair, strict=False)) < 10 for pair in agreeing)
    assert [order(place, 1) for place in range(300)] != rows[:300]
