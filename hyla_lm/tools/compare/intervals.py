"""Differences of bits per byte between groups of runs, with intervals.

Every run scored the same documents, so the difference of two groups is taken document by document.

Over documents: whole documents are drawn again with replacement (a paired cluster bootstrap), the
same draws for all groups; the interval is between percentiles. It is of these very runs.

Over seeds and documents: runs and documents are crossed, so the variance of a difference is that
over seeds plus that over documents, less the part that both count (Cameron, Gelbach and Miller,
"Robust inference with multiway clustering", 2011):

    V = s_A^2 / n_A + s_B^2 / n_B + max(V_documents - V_both, 0)

s^2 is the variance of a group's bits per byte over its seeds, V_documents that of the bootstrap,
and V_both the part of it that belongs to one seed and one document together, from the residuals of
a two-way table. The interval is Welch's, with degrees of freedom by Satterthwaite (1946), so that
seeds may vary more in one group. With two or three seeds s^2 is known badly: intervals are wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from hyla_lm.tools.compare.budget import LN2

LEVEL = 0.95
RESAMPLES = 2000
RESAMPLES_A_PAIR = 200  # so that the smallest p of a bootstrap stays small when it is adjusted
CHUNK = 1 << 22
SEED = 0
SMALLEST_P = 0.001


@dataclass(frozen=True)
class Interval:
    """A 95 % interval and the p-value of no difference."""

    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Difference:
    """Bits per byte of one group less those of another, over documents and over seeds too.

    `over_seeds` is None where a group has one run, which says nothing of other seeds.
    """

    value: float
    over_documents: Interval
    over_seeds: Interval | None


def differences(
    nats_RxN: np.ndarray,
    bytes_N: np.ndarray,
    groups: Sequence[Sequence[int]],
    pairs: Sequence[tuple[int, int]],
) -> list[Difference]:
    """The difference of each pair of groups, which list their runs among R; documents are N."""
    bits_GxN = np.stack([nats_RxN[list(runs)].mean(axis=0) / LN2 for runs in groups])
    resamples = max(RESAMPLES, RESAMPLES_A_PAIR * len(pairs))
    drawn_SxG = resampled(bits_GxN, bytes_N, resamples)
    scores_R = nats_RxN.sum(axis=1) / LN2 / bytes_N.sum()
    results = []
    for a, b in pairs:
        drawn_S = drawn_SxG[:, a] - drawn_SxG[:, b]
        both = sum(_variance_of_both(nats_RxN[list(groups[one])], bytes_N) for one in (a, b))
        documents = max(float(drawn_S.var(ddof=1)) - both, 0.0)
        ours, theirs = scores_R[list(groups[a])], scores_R[list(groups[b])]
        over_seeds = welch(ours, theirs, documents, len(bytes_N) - 1)
        value = float(ours.mean() - theirs.mean())
        results.append(Difference(value, percentile_interval(drawn_S), over_seeds))
    return results


def resampled(bits_GxN: np.ndarray, bytes_N: np.ndarray, resamples: int) -> np.ndarray:
    """Bits per byte of each group over documents drawn with replacement (resamples x G)."""
    rng, count = np.random.default_rng(SEED), len(bytes_N)
    columns_NxG1 = np.stack([*bits_GxN, bytes_N], axis=1)
    at_once = max(1, CHUNK // count)
    parts = []
    for first in range(0, resamples, at_once):
        size = min(at_once, resamples - first)
        drawn = rng.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        parts.append(weights.astype(np.float64) @ columns_NxG1)
    sums = np.concatenate(parts)
    return sums[:, :-1] / sums[:, -1:]


def percentile_interval(drawn_S: np.ndarray) -> Interval:
    """Where the middle 95 % of the draws lie; p is twice the share on the other side of 0."""
    low, high = np.quantile(drawn_S, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    beyond = min((drawn_S <= 0).sum(), (drawn_S >= 0).sum())
    return Interval(float(low), float(high), min(1.0, 2 * (beyond + 1) / (len(drawn_S) + 1)))


def welch(
    ours: Sequence[float] | np.ndarray,
    theirs: Sequence[float] | np.ndarray,
    documents: float = 0.0,
    freedom: int = 1,
) -> Interval | None:
    """Welch's interval of a difference of means; None where one is of a single value.

    `documents` is a variance beside that of the values, with its degrees of freedom.
    """
    if min(len(ours), len(theirs)) < 2:
        return None
    value = float(np.mean(ours) - np.mean(theirs))
    parts = [(float(np.var(x, ddof=1)) / len(x), len(x) - 1) for x in (ours, theirs)]
    parts.append((documents, freedom))
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Interval(value, value, float(value == 0))
    degrees = variance**2 / sum(part**2 / own for part, own in parts)
    error, width = np.sqrt(variance), stdtrit(degrees, (1 + LEVEL) / 2)
    p = 2 * float(stdtr(degrees, -abs(value) / error))
    return Interval(float(value - width * error), float(value + width * error), p)


def _variance_of_both(nats_nxN: np.ndarray, bytes_N: np.ndarray) -> float:
    """The part of the variance of a group's mean of one seed and one document; 0 for one seed."""
    n = len(nats_nxN)
    if n == 1:
        return 0.0
    bits_nxN = nats_nxN / LN2
    score_n = bits_nxN.sum(axis=1) / bytes_N.sum()
    rest_nxN = (bits_nxN - score_n[:, None] * bytes_N) / bytes_N.sum()
    return float(((rest_nxN - rest_nxN.mean(axis=0)) ** 2).sum() / (n - 1) / n)


def p_text(p: float) -> str:
    """A p-value as tables have it."""
    return f"{p:.3f}" if p >= SMALLEST_P else f"< {SMALLEST_P}"


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for their number by Holm (1979)."""
    count, largest = len(p_values), 0.0
    adjusted = [0.0] * count
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
