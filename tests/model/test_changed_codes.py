"""A model with changed codes: its own change nothing, those of others and their values do all."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.spec import Codes
from hyla_lm.errors import UserError
from hyla_lm.model.changed_codes import Operands, apply_changed
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from tests.model.small_model import TOLERANCE, VOCABULARY, parameters, small, tokens


def unchanged(layer: int, own: Operands) -> Operands:
    return own


def drawn(**fields: Any) -> tuple[Decoder, dict, jax.Array]:
    model = Decoder(small(**fields), Tokens(VOCABULARY))
    return model, parameters(model, tokens()), tokens()


@pytest.mark.parametrize(("attention", "remat"), [("hyla_deep", True), ("hyla_gated", False)])
def test_own_operands_change_nothing(attention: str, remat: bool) -> None:
    model, params, inputs = drawn(attention=attention, remat=remat)
    change = jax.jit(lambda params: apply_changed(model, params, unchanged, inputs))
    want = jax.jit(model.apply)({"params": params}, inputs)
    np.testing.assert_allclose(change(params), want, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_layer_of_zero_codes_adds_its_bias_alone() -> None:
    """Attention is then 0 whatever the values are, so other values change nothing."""
    model, params, inputs = drawn(attention="hyla", num_layers=1)

    def silent(scale: float) -> jax.Array:
        def change(layer: int, own: Operands) -> Operands:
            return Operands(Codes(jnp.zeros_like(own.codes.made_HxSxT)), scale * own.v_BxSxHxU)

        return apply_changed(model, params, change, inputs)

    np.testing.assert_array_equal(silent(1), silent(7))
    own: Any = model.apply({"params": params}, inputs)
    assert np.abs(silent(1) - own).max() > 100 * TOLERANCE


def test_scanned_layers_are_refused() -> None:
    model, params, inputs = drawn(scan_layers=True)
    with pytest.raises(UserError, match="scan_layers = False"):
        apply_changed(model, params, unchanged, inputs)
