"""The kernels that a run tells before it starts are those that its layers take."""

from typing import Any

import jax
import pytest

from hyla_lm.attention import attend as attention_module
from hyla_lm.errors import UserError
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import kernels_of
from hyla_lm.parallel.mesh import MeshConfig, make_mesh
from tests.model.small_model import VOCABULARY, shapes, small, tokens

MIXED = ("hyla", "softmax")


@pytest.fixture
def on_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "platform", lambda: "tpu")


def kernels(length: int = 256, **fields: Any) -> list[str]:
    model = Decoder(small(**fields), Tokens(VOCABULARY))
    with jax.set_mesh(make_mesh(MeshConfig(), jax.devices()[:1])):
        return kernels_of(model, shapes(model, tokens(1)), 2, length)


@pytest.mark.usefixtures("on_tpu")
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["pallas_hyla", "pallas_softmax"]),
        ({"attention_dropout": 0.1}, ["blocked", "blocked"]),
        ({"attention_implementation": "reference"}, ["reference", "reference"]),
    ],
    ids=str,
)
def test_every_layer_as_it_trains(fields: dict[str, Any], expected: list[str], scan: bool) -> None:
    fields = {"attention": MIXED, "num_layers": 4, "scan_layers": scan, "remat": scan} | fields
    assert kernels(**fields) == 2 * expected


def test_what_no_kernel_can_do_is_said_before_the_first_step() -> None:
    with pytest.raises(UserError, match="'pallas_tpu' cannot do"):
        kernels(attention_implementation="pallas_tpu", positions="relative")
