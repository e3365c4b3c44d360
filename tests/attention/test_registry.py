"""The list of kernels: which one a request gets, in which order, and the reasons of the others."""

from typing import Any

import jax
import numpy as np
import pytest

from hyla_lm.attention import attend as attention_module
from hyla_lm.attention.attend import choose
from hyla_lm.attention.request import Request, make_request
from hyla_lm.attention.spec import VARIANTS
from hyla_lm.errors import UserError

MANY = 129  # positions, of which 128 are the most that are few


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


def asked(
    name: str,
    length: int = MANY,
    keys: int | None = None,
    size: int = 2,
    dtype: str = "float32",
    **options: Any,
) -> Request:
    """A causal request of one head, as shapes."""
    query, key = (zeros(1, x, 1, size, dtype=dtype) for x in (length, keys or length))
    options = {"causal": True} | options
    return jax.eval_shape(lambda: make_request(query, key, key, VARIANTS[name], **options))


BIAS = {"bias": zeros(1, 1, 1, 1)}
DROPOUT = {"dropout": zeros(1, 1, 1, 1)}
BRAIN = {"dtype": "bfloat16", "size": 8}


def documents(length: int = MANY) -> dict[str, Any]:
    return {"segment_ids": zeros(1, length, dtype="int32")}


@pytest.mark.parametrize(
    ("platform", "name", "options", "expected"),
    [
        ("cpu", "softmax", {"length": 128}, "reference"),
        ("cpu", "softmax", {"length": 1, "keys": 128 * 128}, "reference"),
        ("cpu", "softmax", {"length": 1, "keys": 128 * 128 + 1}, "softmax_prefixes"),
        ("cpu", "linear", {}, "linear_chunks"),
        ("cpu", "linear_rms_head", {}, "blocked"),
        ("cpu", "hyla", {"length": 2}, "blocked"),
        ("tpu", "hyla", documents(), "pallas_hyla"),
        ("tpu", "hyla", {"size": 129}, "blocked"),
        ("tpu", "hyla", BIAS, "blocked"),
        ("tpu", "hyla", DROPOUT, "blocked"),
        ("tpu", "hyla", {"length": 128}, "blocked"),
        ("tpu", "hyla_softmax", {}, "blocked"),
        ("tpu", "softmax", {"length": 2048, "size": 128}, "pallas_softmax"),
        ("tpu", "softmax", {"size": 129}, "splash_softmax"),
        ("tpu", "softmax", {"length": 2049, "keys": MANY}, "splash_softmax"),
        ("tpu", "softmax", BIAS, "blocked"),
        ("tpu", "linear", {}, "linear_chunks_of_512"),
        ("tpu", "linear", DROPOUT, "blocked"),
        ("tpu", "linear", {"keys": MANY + 1, "q_offset": 1}, "blocked"),
        ("tpu", "talking_heads", {}, "pallas_pairs"),
        ("tpu", "talking_heads", {"length": 1025}, "blocked"),
        ("gpu", "softmax", BRAIN, "cudnn_softmax"),
        ("gpu", "softmax", BRAIN | {"length": 130} | documents(130), "cudnn_softmax"),
        ("gpu", "softmax", BRAIN | documents(), "blocked"),
        ("gpu", "softmax", {"size": 8}, "blocked"),
        ("gpu", "softmax", BRAIN | {"size": 12}, "blocked"),
        ("gpu", "softmax", BRAIN | {"size": 136}, "blocked"),
        ("gpu", "softmax", BRAIN | {"keys": 300}, "blocked"),
        ("gpu", "hyla", BRAIN, "blocked"),
    ],
    ids=str,
)
def test_auto_takes_the_first_kernel_that_can_and_pays(
    platform: str,
    name: str,
    options: dict[str, Any],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_module, "platform", lambda: platform)
    assert choose(asked(name, **options)).name == expected


@pytest.mark.parametrize(
    ("implementation", "name", "options", "expected"),
    [
        ("blocked", "linear", {}, "linear_chunks"),
        ("blocked", "linear", BIAS, "blocked"),
        ("blocked", "softmax", {"length": 2}, "softmax_prefixes"),
        ("blocked", "softmax", {"length": 2049}, "blocked"),
        ("pallas_tpu", "softmax", {"length": 2}, "pallas_softmax"),
        ("cudnn_gpu", "softmax", BRAIN, "cudnn_softmax"),
    ],
    ids=str,
)
def test_an_implementation_by_name_takes_its_first_kernel_that_can(
    implementation: str, name: str, options: dict[str, Any], expected: str
) -> None:
    assert choose(asked(name, **options), implementation).name == expected


def test_an_implementation_that_cannot_do_a_request_is_said() -> None:
    with pytest.raises(UserError, match="'pallas_tpu' cannot do .* use 'blocked' or 'reference'"):
        choose(asked("hyla", **BIAS), "pallas_tpu")
