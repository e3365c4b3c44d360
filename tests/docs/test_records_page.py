"""The methods of the record book have equal parameters and are compared on the same documents."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from docs.studies.records import METHODS, RATES, RESULTS, STEPS, Setting
from docs.studies.records_numbers import cells_of, pairs
from docs.studies.text_recall import seen_before
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.flops import count_parameters

ROOT = Path(__file__).parents[2]
VOCABULARY = 2048
SIZES_TOLD = {"270k": 0.27, "500k": 0.53, "1m": 1.06, "2m": 1.99, "4m": 3.95}


def test_runs_of_other_documents_are_refused(tmp_path: Path) -> None:
    copied = shutil.copytree(RESULTS, tmp_path / "records")
    path = copied / "runs" / "500k_hyla_seed0.json"
    run = json.loads(path.read_text())
    path.write_text(json.dumps({**run, "bytes": [size + 1 for size in run["bytes"]]}))
    with pytest.raises(UserError, match="other documents"):
        pairs(cells_of(copied, "500k"))


@pytest.mark.parametrize("size", SIZES_TOLD)
def test_methods_of_a_size_have_equal_parameters(size: str) -> None:
    found = set()
    for method in METHODS:
        bindings = Setting(size, method, RATES[0], STEPS, 0).bindings
        config = read_experiment([str(ROOT / "gin" / "records" / f"{size}.gin")], bindings).model
        model = Decoder(config, Tokens(VOCABULARY))
        shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), int))
        found.add(count_parameters(shapes["params"]))
    (count,) = found
    assert round(count / 1e6, 2) == SIZES_TOLD[size]


def test_a_pair_was_seen_if_it_stood_earlier_in_the_document() -> None:
    inputs, targets, documents = np.array([[[1, 2, 1, 1]], [[2, 1, 2, 2]], [[1, 1, 1, 2]]])
    assert seen_before(inputs, targets, documents).tolist() == [[False, False, True, False]]
