"""Intervals against brute force, and against simulated runs whose true difference is known."""

import numpy as np
import pytest
from scipy import stats

from hyla_lm.tools.compare import intervals
from hyla_lm.tools.compare.budget import LN2
from hyla_lm.tools.compare.intervals import differences, holm, resampled, welch

RNG = np.random.default_rng(7)
BYTES = RNG.integers(50, 500, 60).astype(np.float64)


def simulated(
    rng: np.random.Generator, runs: tuple[int, int], truth: float, seeds: float, both: float
) -> tuple[np.ndarray, np.ndarray]:
    """Nats of two groups of runs on 120 documents, and the documents' bytes.

    Bits per byte of a document differ by the truth and by what the document, the seed, and both
    together add.
    """
    size_N = rng.integers(50, 500, 120).astype(np.float64)
    base_N = rng.normal(1, 0.3, 120)
    groups = [
        base_N
        + group * (truth + 0.1 * rng.standard_normal(120))
        + seeds * rng.standard_normal((count, 1))
        + both * rng.standard_normal((count, 120))
        for group, count in zip((1, 0), runs, strict=True)
    ]
    return np.concatenate(groups) * size_N * LN2, size_N


def of_two(nats: np.ndarray, size_N: np.ndarray, runs: tuple[int, int]) -> intervals.Difference:
    split = list(range(runs[0])), list(range(runs[0], sum(runs)))
    return differences(nats, size_N, split, [(0, 1)])[0]


def test_draws_of_documents_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Document by document, with the same random choices, in several chunks."""
    monkeypatch.setattr(intervals, "CHUNK", 7 * len(BYTES))
    bits = RNG.exponential(size=(2, len(BYTES)))
    rng = np.random.default_rng(intervals.SEED)
    expected = []
    for size in (7, 7, 6):
        for chosen in rng.integers(len(BYTES), size=(size, len(BYTES))):
            expected.append([bits[g][chosen].sum() / BYTES[chosen].sum() for g in range(2)])
    np.testing.assert_allclose(resampled(bits, BYTES, 20), expected, rtol=1e-12)


def test_the_variance_of_seeds_and_documents_is_that_of_brute_force() -> None:
    """The part of one seed and one document, by loops over a table."""
    table = RNG.exponential(size=(3, len(BYTES)))
    means = [table[s].sum() / BYTES.sum() for s in range(3)]
    total = 0.0
    for d in range(len(BYTES)):
        rest = [(table[s, d] - means[s] * BYTES[d]) / BYTES.sum() for s in range(3)]
        total += sum((r - np.mean(rest)) ** 2 for r in rest) / 2 / 3
    assert intervals._variance_of_both(table * LN2, BYTES) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(
    ("runs", "seeds", "both"),
    [((1, 1), 0.0, 0.05), ((3, 3), 0.0, 0.3), ((3, 2), 0.03, 0.3)],
)
def test_95_percent_intervals_cover_the_truth_as_often_as_they_say(
    runs: tuple[int, int], seeds: float, both: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 simulated experiments know a share of 95 % to 1 %; 90 to 98 % must be covered."""
    monkeypatch.setattr(intervals, "RESAMPLES", 300)
    rng, truth, covered = np.random.default_rng(3), 0.02, 0
    for _ in range(500):
        found = of_two(*simulated(rng, runs, truth, seeds, both), runs)
        assert (found.over_seeds is None) == (runs == (1, 1))
        interval = found.over_seeds or found.over_documents
        covered += interval.low <= truth <= interval.high
    assert 0.90 <= covered / 500 <= 0.98


def test_without_documents_it_is_welchs_test() -> None:
    """Seeds may vary more in one group, so that no variance is pooled."""
    calm, rough = [1.0, 1.1, 1.3, 1.2], [1.5, 1.9, 2.6]
    expected = stats.ttest_ind(rough, calm, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    found = welch(rough, calm)
    assert found is not None and welch(calm, [2.0]) is None
    assert (found.low, found.high, found.p) == pytest.approx((low, high, expected.pvalue))


def test_seeds_that_vary_widen_the_interval_and_equal_runs_differ_by_nothing() -> None:
    calm = of_two(*simulated(np.random.default_rng(5), (3, 3), 0.1, 0.0, 0.05), (3, 3))
    rough = of_two(*simulated(np.random.default_rng(5), (3, 3), 0.1, 0.1, 0.05), (3, 3))
    assert calm.over_seeds is not None and rough.over_seeds is not None
    assert calm.over_seeds.p < 0.05 < rough.over_seeds.p
    assert rough.over_documents.p < 0.05, "documents say nothing of seeds"
    equal = of_two(np.tile(RNG.exponential(size=(1, len(BYTES))), (4, 1)), BYTES, (2, 2))
    assert equal.over_seeds is not None
    assert (equal.value, equal.over_seeds.p, equal.over_documents.p) == (0.0, 1.0, 1.0)


def test_holm_is_the_smallest_level_at_which_the_step_down_test_rejects() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.7, 0.9]) == [1.0, 1.0]
