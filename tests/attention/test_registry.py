"""The list of kernels: which one a request gets, in which order, and the reasons of the others."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from hyla_lm.attention import attend as attention_module
from hyla_lm.attention.attend import (
    IMPLEMENTATIONS,
    KERNELS,
    VARIANTS,
    Request,
    attend,
    choose,
    make_request,
)
from hyla_lm.attention.softmax import whole_tpu
from hyla_lm.errors import UserError

MANY = 129  # positions, of which 128 are the most that are few
PALLAS = [kernel.name for kernel in KERNELS if kernel.implementation == "pallas_tpu"]


@pytest.fixture
def on_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "platform", lambda: "tpu")


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "platform", lambda: "gpu")


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
    """A causal request of one head."""
    query, key = (zeros(1, x, 1, size, dtype=dtype) for x in (length, keys or length))
    return make_request(query, key, key, VARIANTS[name], **({"causal": True} | options))


def chosen(implementation: str, name: str, *lengths: int, **options: Any) -> str:
    return choose(asked(name, *lengths, **options), implementation).name


BIAS = {"bias": zeros(1, 1, 1, 1)}
DROPOUT = {"dropout": zeros(1, 1, 1, 1)}


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        ("softmax", 128, "reference"),
        ("softmax", MANY, "softmax_prefixes"),
        ("linear", 128, "reference"),
        ("linear", MANY, "linear_chunks"),
        ("linear_rms_head", 128, "reference"),
        ("linear_rms_head", MANY, "blocked"),
        ("hyla", 2, "blocked"),
        ("hyla", MANY, "blocked"),
        ("hyla_softmax", 2, "blocked"),
    ],
)
def test_auto_saves_memory_but_for_small_matrices_without_a_hypernetwork(
    name: str, length: int, expected: str
) -> None:
    assert chosen("auto", name, length) == expected


def test_auto_counts_pairs() -> None:
    assert chosen("auto", "softmax", 1, 128 * 128) == "reference"
    assert chosen("auto", "softmax", 1, 128 * 128 + 1) == "softmax_prefixes"


@pytest.mark.usefixtures("on_tpu")
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("hyla", {}, "pallas_hyla"),
        ("hyla", {"causal": False}, "pallas_hyla"),
        ("hyla", {"segment_ids": zeros(1, MANY, dtype="int32")}, "pallas_hyla"),
        ("hyla", {"size": 129}, "blocked"),
        ("hyla", BIAS, "blocked"),
        ("hyla", DROPOUT, "blocked"),
        ("hyla", {"length": 128}, "blocked"),
        ("hyla_softmax", {}, "blocked"),
        ("softmax", {}, "pallas_softmax"),
        ("softmax", {"size": 129}, "splash_softmax"),
        ("softmax", {"length": 2049}, "splash_softmax"),
        ("softmax", BIAS, "blocked"),
        ("softmax", DROPOUT, "blocked"),
        ("softmax", {"length": 128}, "reference"),
        ("linear", {}, "linear_chunks_of_512"),
        ("linear", DROPOUT, "blocked"),
        ("linear", {"causal": False}, "blocked"),
        ("linear", {"keys": MANY + 1, "q_offset": 1}, "blocked"),
        ("linear", {"length": 128}, "reference"),
        ("linear_rms_head", {}, "blocked"),
    ],
    ids=str,
)
def test_auto_on_tpu_takes_the_kernels_for_it_where_they_can(
    name: str, options: dict[str, Any], expected: str
) -> None:
    assert chosen("auto", name, **options) == expected


BRAIN = {"dtype": "bfloat16", "size": 8}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("softmax", BRAIN, "cudnn_softmax"),
        ("softmax", {**BRAIN, "dtype": "float16"}, "cudnn_softmax"),
        ("softmax", {**BRAIN, "causal": False}, "cudnn_softmax"),
        ("softmax", {**BRAIN, "length": 300}, "cudnn_softmax"),
        (
            "softmax",
            {**BRAIN, "length": 130, "segment_ids": zeros(1, 130, dtype="int32")},
            "cudnn_softmax",
        ),
        ("softmax", {**BRAIN, "segment_ids": zeros(1, MANY, dtype="int32")}, "blocked"),
        ("softmax", {"size": 8}, "blocked"),
        ("softmax", {**BRAIN, "size": 12}, "blocked"),
        ("softmax", {**BRAIN, "size": 136}, "blocked"),
        ("softmax", {**BRAIN, "keys": 300}, "blocked"),
        ("softmax", {**BRAIN, "q_offset": 1, "keys": MANY + 1}, "blocked"),
        ("softmax", {**BRAIN, **BIAS}, "blocked"),
        ("softmax", {**BRAIN, "length": 128}, "reference"),
        ("linear", BRAIN, "linear_chunks"),
        ("hyla", BRAIN, "blocked"),
        ("hyla_softmax", BRAIN, "blocked"),
    ],
    ids=str,
)
def test_auto_on_gpu_takes_cudnn_where_it_can(
    name: str, options: dict[str, Any], expected: str
) -> None:
    assert chosen("auto", name, **options) == expected


@pytest.mark.parametrize("length", [2, MANY])
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("linear", {}, "linear_chunks"),
        ("linear", BIAS, "blocked"),
        ("linear", DROPOUT, "blocked"),
        ("linear", {"causal": False}, "blocked"),
        ("linear", {"q_offset": 1}, "blocked"),
        ("linear", {"keys": 300}, "blocked"),
        ("softmax", {}, "softmax_prefixes"),
        ("softmax", BIAS, "blocked"),
        ("hyla", {}, "blocked"),
    ],
    ids=str,
)
def test_blocked_takes_chunks_where_they_are_exact(
    name: str, options: dict[str, Any], expected: str, length: int
) -> None:
    assert chosen("blocked", name, length, **options) == expected
    assert chosen("reference", name, length, **options) == "reference"


def test_our_softmax_kernel_takes_rows_and_heads_that_fit() -> None:
    longest, widest = whole_tpu.MAX_LENGTH, whole_tpu.MAX_SIZE
    assert chosen("pallas_tpu", "softmax", 1, longest, size=widest) == "pallas_softmax"
    assert chosen("pallas_tpu", "softmax", 1, longest + 1) == "splash_softmax"
    assert chosen("pallas_tpu", "softmax", longest + 1, 1) == "splash_softmax"
    assert chosen("pallas_tpu", "softmax", 1, 1, size=widest + 1) == "splash_softmax"


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as error:
        chosen("pallas_tpu", *arguments, **options)
    return str(error.value)


def test_a_reason_of_several_kernels_is_told_once() -> None:
    assert refusal("hyla", **BIAS) == (
        f"attention implementation 'pallas_tpu' cannot do a bias ({', '.join(PALLAS)}): "
        "use 'blocked' or 'reference'."
    )
    assert refusal("softmax", **DROPOUT).count("dropout") == 1


def test_each_kernel_gives_its_reason() -> None:
    assert refusal("hyla_softmax") == (
        "attention implementation 'pallas_tpu' cannot do normalization 'softmax_rms_head' "
        "(pallas_hyla, pallas_pairs), a hypernetwork (pallas_softmax, splash_softmax, "
        "linear_chunks_of_512): use 'blocked' or 'reference'."
    )
    said = refusal("linear", causal=False)
    assert "a linear value network (pallas_hyla)" in said
    assert "normalization 'identity' (pallas_softmax, pallas_pairs, splash_softmax)" in said
    assert "linear attention that is not causal from the first token (linear_chunks_of_512)" in said


def test_an_unknown_implementation_is_named_with_the_known_ones() -> None:
    known = "'auto', 'reference', 'blocked', 'cudnn_gpu', 'pallas_tpu'"
    with pytest.raises(UserError, match=rf"attention implementation 'flash' .* one of {known}\."):
        attend(*[zeros(1, 2, 1, 2)] * 3, VARIANTS["hyla"], implementation="flash")


@pytest.mark.usefixtures("on_tpu")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_shapes_are_enough_to_choose(implementation: str) -> None:
    bfloat16 = partial(asked, "softmax", size=8, dtype="bfloat16")
    assert choose(jax.eval_shape(bfloat16), implementation) == choose(bfloat16(), implementation)


def test_the_kernel_chosen_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def spied(kernel: attention_module.Kernel) -> attention_module.Kernel:
        def run(request: Request) -> jax.Array:
            ran.append(kernel.name)
            return kernel.run(request)

        return kernel._replace(run=run)

    monkeypatch.setattr(attention_module, "KERNELS", tuple(map(spied, KERNELS)))
    x = zeros(1, 10, 1, 2)
    for options in ({}, BIAS):
        attend(x, x, x, VARIANTS["linear"], causal=True, implementation="blocked", **options)
    assert ran == ["linear_chunks", "blocked"]
