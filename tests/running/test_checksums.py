"""Checksums of arrays tell every change of a word, and of its place."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from hyla_lm.checkpoint.checksums import checksums


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, jax.numpy.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (2, 3, 4)])
def test_every_change_of_a_word_and_of_its_place_changes_the_sum(shape, dtype) -> None:
    values = (np.random.default_rng(0).standard_normal(shape) * 8).astype(dtype)

    def sum_of(array: np.ndarray) -> str:
        return checksums({"x": jax.numpy.asarray(array)})["x"]

    before = sum_of(values)
    flat = np.atleast_1d(values).reshape(-1)
    for place in range(flat.size):
        changed = flat.copy()
        changed[place] = ~changed[place] if dtype == np.bool_ else -changed[place] - 1
        assert sum_of(changed.reshape(shape)) != before
    for place in range(1, flat.size):
        changed = flat.copy()
        changed[[0, place]] = changed[[place, 0]]
        if changed[0] != flat[0]:
            assert sum_of(changed.reshape(shape)) != before


def test_words_that_change_places_across_the_diagonal_change_the_sum() -> None:
    words = jax.numpy.array([[0, 1], [2, 0]])
    assert checksums({"x": words}) != checksums({"x": words.T})


def test_a_sum_is_that_of_the_shards_of_which_copies_count_once() -> None:
    whole = np.arange(12).reshape(4, 3)

    def shard(rows: slice, copy: int) -> SimpleNamespace:
        return SimpleNamespace(data=whole[rows], index=(rows, slice(None)), replica_id=copy)

    shards = [shard(rows, copy) for rows in (slice(0, 2), slice(2, 4)) for copy in (0, 1)]
    split = SimpleNamespace(addressable_shards=shards)
    one = SimpleNamespace(addressable_shards=[shard(slice(None), 0)])
    assert checksums({"x": split}) == checksums({"x": one})
