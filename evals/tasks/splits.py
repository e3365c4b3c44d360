"""Splits of combinations of parts into trained and held-out ones.

A part is a fuzzy-logic term or a SRAVEN rule. `covering` is our split: it orders combinations by a
hash of the seed, so it is the same on every machine and under every version of JAX, and it draws
again until every part is in training. `published` is the order that the paper's code drew with the
JAX of its time; some of its seeds leave parts out of training. `published_new_jax` is the order of
the same code since JAX 0.5, which changed the default of jax_threefry_partitionable.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.generated import GeneratedConfig

MAX_DRAWS = 1000
MOST_COMBINATIONS = 2**20


def combined(parts: Sequence[int], size: int, settings: str) -> np.ndarray:
    """All combinations of so many of the parts, CxM; raises UserError, with settings, for many."""
    count = comb(len(parts), size)
    if count > MOST_COMBINATIONS:
        raise UserError(
            f"{settings} make {count:.3g} combinations, of which a task has at most "
            f"{MOST_COMBINATIONS:,}: lower one."
        )
    return np.array(list(combinations(parts, size)))


def make_split(combinations_CxM: np.ndarray, config: GeneratedConfig) -> dict[str, np.ndarray]:
    """The combinations, each CxM part numbers, of "train" and of the evaluation sets, by name.

    A fraction of them is held out, rounded down.

    Raises UserError if a side is empty, if no draw covers every part, or if a published split is
    not known.
    """
    name, fraction, seed = type(config).__name__, config.held_out_fraction, config.seed
    count = len(combinations_CxM)
    held_out = int(count * fraction)
    if not 0 < held_out < count:
        raise UserError(
            f"{name}.held_out_fraction = {fraction} of {count} combinations holds out {held_out} "
            f"and trains on {count - held_out}: both must be above 0, change it."
        )
    if config.split != "covering":
        return _cut(combinations_CxM, _published_order(config, count), held_out)
    for draw in range(MAX_DRAWS):
        split = _cut(combinations_CxM, _hashed_order(count, seed, draw), held_out)
        if len(np.unique(split["train"])) == len(np.unique(combinations_CxM)):
            return split
    raise UserError(
        f"{name}.held_out_fraction = {fraction} leaves {count - held_out} of {count} combinations "
        f"to train on, and in {MAX_DRAWS} draws none had every part: lower it."
    )


def _cut(combinations_CxM: np.ndarray, order: list[int], held_out: int) -> dict[str, np.ndarray]:
    ordered = combinations_CxM[order]
    train, held_out_CxM = ordered[held_out:], ordered[:held_out]
    return {"train": train, "in_distribution": train, "held_out": held_out_CxM}


def _hashed_order(count: int, seed: int, draw: int) -> list[int]:
    def hash_of(index: int) -> bytes:
        return hashlib.sha256(f"{seed} {draw} {index}".encode()).digest()

    return sorted(range(count), key=hash_of)


def _published_order(config: GeneratedConfig, count: int) -> list[int]:
    name, orders = type(config).__name__, _published()[config.split]
    order = orders.get(str(count), {}).get(str(config.seed))
    if order is None:
        raise UserError(
            f"{name}.split = {config.split!r} is known for the paper's 66 or 330 combinations and "
            f"seeds 0, 1, 2 and 2024, not for {count} and {config.seed}: use 'covering'."
        )
    return order


@cache
def _published() -> dict[str, dict[str, dict[str, list[int]]]]:
    return json.loads((Path(__file__).parent / "published_splits.json").read_text())
