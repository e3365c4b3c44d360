"""The JAX decoder against logits that the exported PyTorch module gave, kept in the repository.

`python -m tests.golden.make_torch_goldens` writes them anew; tests/export/test_torch.py, where
PyTorch is, says that the module still gives them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from hyla_lm.export.description import model_config_of
from hyla_lm.export.tensors import from_tensors
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from tests.golden import torch_models
from tests.golden.torch_models import MODELS, VOCABULARY, tensors_of, token_ids
from tests.model.small_model import QUICK_COMPILE

# Logits of order 1 in float32 through two layers, of which RMSHead may magnify the rounding.
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_pytorch(name: str) -> None:
    entries, expected = torch_models.read(name)
    config = model_config_of(entries, "config.json")
    flat = from_tensors(tensors_of(config), config, VOCABULARY, name)
    decode = jax.jit(Decoder(config, Tokens(VOCABULARY)).apply, compiler_options=QUICK_COMPILE)
    logits = decode({"params": unflatten_dict(flat, sep="/")}, jnp.asarray(token_ids()))
    assert expected.std() > 0.3, "the model says too little to tell right from wrong"
    np.testing.assert_allclose(logits, expected, atol=TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_the_kept_config_is_the_one_written_now(name: str) -> None:
    entries, _ = torch_models.read(name)
    assert entries.pop("use_cache") is False  # kept before exported models had a cache
    assert entries == torch_models.described(MODELS[name])
    assert torch_models.described(model_config_of(entries, "config.json")) == entries
