"""Statistics of latent codes without labels, and of their means by label."""

import numpy as np


def effective_rank(code_BxC: np.ndarray) -> float:
    """The effective rank: exp of the entropy of the shares of the centred codes' singular values.

    It is 0 for codes that do not vary (Roy and Vetterli, 2007).
    """
    code_BxC = code_BxC.astype(np.float64)
    values = np.linalg.svd(code_BxC - code_BxC.mean(0), compute_uv=False)
    # Rounding of the mean leaves singular values of this size where codes are all alike.
    floor = np.finfo(np.float64).eps * np.abs(code_BxC).max(initial=0) * len(code_BxC)
    values = values[values > floor]
    share = values / values.sum() if len(values) else values
    return float(np.exp(-np.sum(share * np.log(share)))) if len(values) else 0.0


def mean_codes(code_BxC: np.ndarray, group_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The groups that occur, sorted, and the mean code of each."""
    groups, index_B = np.unique(group_B, axis=0, return_inverse=True)
    sums = np.zeros((len(groups), code_BxC.shape[1]))
    np.add.at(sums, index_B.ravel(), code_BxC)
    return groups, sums / np.bincount(index_B.ravel())[:, None]


def cosine_similarity(mean_GxC: np.ndarray) -> np.ndarray:
    """The cosine similarity of groups, GxG; 0 with a mean of zeros."""
    length = np.linalg.norm(mean_GxC, axis=1, keepdims=True)
    unit_GxC = np.divide(mean_GxC, length, out=np.zeros_like(mean_GxC), where=length > 0)
    return unit_GxC @ unit_GxC.T


def about_their_mean(mean_GxC: np.ndarray) -> np.ndarray:
    """The group means minus their own mean."""
    return mean_GxC - mean_GxC.mean(0)


def dead_units(active: np.ndarray | None) -> dict[str, float | int] | None:
    """Counts a layer's value units that never were above 0; None without a ReLU."""
    if active is None:
        return None
    return {"units": active.size, "dead": int((~active).sum()), "share": float((~active).mean())}
