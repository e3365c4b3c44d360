"""A trained run, and small models with random parameters, to load and export."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.input.prepared import Rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from tests.model.small_model import parameters, small
from tests.tiny_runs import train, write_gin

STEPS = 4
TEXT = "bast ten ba"


@pytest.fixture(scope="session")
def trained_run(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a run of 4 steps with checkpoints of steps 2 and 4."""
    home = tmp_path_factory.mktemp("trained")
    short = [f"TrainConfig.steps={STEPS}", "CheckpointConfig.every=2"]
    assert train(write_gin(home, tiny_rows), home / "run", *short) == 0
    return str(home / "run")


def make_model(tokenizer: Tokenizer, **fields: Any) -> LoadedModel:
    """A small model with random values in every parameter, of a layer for each attention."""
    pattern = fields.get("attention")
    layers = len(pattern) if isinstance(pattern, tuple) else 1
    decoder = Decoder(small(**{"num_layers": layers, **fields}), Tokens(tokenizer.vocab_size))
    params = parameters(decoder, jnp.zeros((1, 4), jnp.int32))
    return LoadedModel(decoder, params, tokenizer, sequence_length=32, step=7)


@pytest.fixture(scope="session")
def small_model(tokenizer: Tokenizer) -> LoadedModel:
    return make_model(tokenizer, attention=("hyla", "softmax"))


@pytest.fixture(scope="session")
def folder(small_model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model, exported; read it only."""
    from hyla_lm.export.folder import write_folder

    place = tmp_path_factory.mktemp("exported") / "small"
    write_folder(small_model, str(place))
    return place
