"""The request of each device of a mesh, by shapes alone; scripts run it on several devices."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from hyla_lm.attention.attend import choose
from hyla_lm.attention.request import Request, make_request
from hyla_lm.attention.spec import VARIANTS
from hyla_lm.errors import UserError
from hyla_lm.parallel.mesh import AXES, BATCH
from hyla_lm.parallel.sharded_attention import attend_on_mesh, local_request
from tests.scripts import output_of

B, T, H, K, U = 8, 512, 4, 6, 10


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


def request(name: str, queries: int = T, q_offset: int = 0) -> Request:
    return make_request(
        zeros(B, queries, H, K),
        zeros(B, T, H, K),
        zeros(B, T, H, U),
        VARIANTS[name],
        bias=zeros(1, H, queries, T),
        segment_ids=zeros(B, T, dtype="int32"),
        q_offset=q_offset,
        deep_kernel_HxUxU=zeros(H, U, U) if name == "hyla_deep" else None,
        dropout=zeros(1, 1, queries, T),
    )


def local(whole: Request, *sizes: int) -> Request:
    mesh = AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    with jax.sharding.use_abstract_mesh(mesh):
        return local_request(whole)


def shapes(of: Request) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(of)
    return {path[0].name: leaf.shape for path, leaf in leaves}


def test_where_heads_mix_a_device_takes_some_queries_and_all_keys() -> None:
    part = local(request("hyla_deep"), 1, 2, 1, 4)
    assert shapes(part) == {
        "q_BxTxHxK": (B // 2, T // 4, H, K),
        "k_BxSxHxK": (B // 2, T, H, K),
        "v_BxSxHxU": (B // 2, T, H, U),
        "bias": (1, H, T // 4, T),
        "deep_kernel_HxUxU": (H, U, U),
        "dropout": (1, 1, T // 4, T),
        "q_position_T": (T // 4,),
        "k_position_S": (T,),
        "q_segment_BxT": (B // 2, T // 4),
        "k_segment_BxS": (B // 2, T),
    }
    assert part.q_offset is None


def test_elsewhere_a_device_takes_some_heads() -> None:
    part = local(request("softmax", T - 3, q_offset=3), 2, 1, 2, 4)
    assert shapes(part) == {
        "q_BxTxHxK": (B // 4, T - 3, 1, K),
        "k_BxSxHxK": (B // 4, T, 1, K),
        "v_BxSxHxU": (B // 4, T, 1, U),
        "bias": (1, 1, T - 3, T),
        "dropout": (1, 1, T - 3, T),
        "q_position_T": (T - 3,),
        "k_position_S": (T,),
        "q_segment_BxT": (B // 4, T - 3),
        "k_segment_BxS": (B // 4, T),
    }
    assert part.q_offset == 3


def test_one_query_is_not_split() -> None:
    whole = request("hyla", 1, q_offset=5)
    part = local(whole, 1, 2, 1, 4)
    assert (shapes(part), part.q_offset) == (shapes(whole), 5)


def test_documents_of_queries_come_split_by_batch_alone() -> None:
    """Or the tokens that they are made of would be split by position, and gathered in the loss."""
    mesh = AbstractMesh((1, 2, 1, 4), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    with jax.sharding.use_abstract_mesh(mesh):
        program = jax.make_jaxpr(attend_on_mesh)(request("hyla"))
    (constrained,) = (x for x in program.eqns if x.primitive.name == "sharding_constraint")
    assert constrained.invars[0].aval.shape == (B, T)
    assert constrained.params["sharding"].spec == BATCH


def test_the_kernel_is_chosen_by_the_share_of_a_device() -> None:
    whole = make_request(*[zeros(1, 256, 1, 2)] * 3, VARIANTS["linear_rms_head"])
    assert choose(local(whole, 1, 1, 1, 1)).name == "blocked"
    assert choose(local(whole, 1, 1, 1, 4)).name == "reference"


@pytest.mark.parametrize(
    ("name", "queries", "said"),
    [("hyla", T - 1, "does not divide the 511 query positions"), ("softmax", T, "num_heads = 4")],
)
def test_a_model_axis_that_does_not_divide_is_named(name: str, queries: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        local(request(name, queries), 1, 1, 1, 8)


@pytest.fixture(scope="module")
def balanced() -> dict[str, Any]:
    return json.loads(output_of("tests.parallel.balanced_queries", devices=4))


@pytest.mark.parametrize("parts", ["2", "4"])
def test_devices_that_exchange_queries_find_what_one_finds(
    parts: str, balanced: dict[str, Any]
) -> None:
    """The same float32 sums, but for gradients of keys, which add up the devices' parts."""
    errors = balanced[parts]
    assert len(errors) == 5 and max(errors) < 1e-5


@pytest.mark.parametrize(
    ("name", "queries", "causal", "exchanges"),
    [
        ("hyla", T, True, True),
        ("hyla", T, False, False),  # each query sees all keys
        ("hyla", T - 4, True, False),  # a half is no whole block
        ("softmax", T, True, False),
    ],
)
def test_devices_exchange_queries_where_that_evens_out_their_work(
    name: str, queries: int, causal: bool, exchanges: bool
) -> None:
    whole = make_request(
        *(zeros(B, queries, H, K), zeros(B, queries, H, K), zeros(B, queries, H, U)),
        *(VARIANTS[name],),
        causal=causal,
    )
    mesh = AbstractMesh((1, 2, 2, 2), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    with jax.sharding.use_abstract_mesh(mesh):
        program = str(jax.make_jaxpr(attend_on_mesh)(whole))
    assert ("ppermute" in program) == exchanges
