"""The record book is what its results give: means, intervals, and curves read at equal budgets."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from docs.studies.records import (
    METHODS,
    RATES,
    RESULTS,
    STEPS,
    TUNING_SEED,
    Setting,
    best_rate,
    read_all,
)
from docs.studies.records_numbers import budget, cells_of, pairs
from docs.studies.records_page import PAGE, page
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.flops import count_parameters

ROOT = Path(__file__).parents[2]
VOCABULARY = 2048
LARGEST_BYTES, LARGEST_PICTURE_BYTES = 60_000, 80_000
SIZES_TOLD = {"270k": 0.27, "500k": 0.53, "1m": 1.06, "2m": 1.99, "4m": 3.95}
FIGURE = re.compile(r"\d+\.\d{4}")


def write_run(folder: Path, method: str, seed: int, bits: float | None, **more: Any) -> None:
    """A run of 3 documents of 10 bytes; its curve falls by 1 in the second half."""
    offsets = np.array([-1.0, 0.0, 1.0])
    sound = {} if bits is None else {
        "curve": [[STEPS // 2, bits + 1], [STEPS, bits]],
        "bits": (10 * bits + offsets).tolist(),
        "bytes": [10.0] * 3,
    }  # fmt: skip
    run = {
        **{"size": "500k", "method": method, "seed": seed, "learning_rate": RATES[1]},
        **{"bits_per_byte": bits, "cpu_seconds": 100.0, "memory_gb": 0.5, "machine": "CPU, 1 core"},
        **{"parameters": 1000, "flops_per_token": 1e6, "tokens_per_step": 2048},
        **{"environment": {"git_revision": "0123456789abcdef"}, **sound, **more},
    }
    (folder / "runs").mkdir(exist_ok=True)
    name = f"{run['size']}_{method}_{seed}_{run['learning_rate']}.json"
    (folder / "runs" / name).write_text(json.dumps(run))


def write_times(folder: Path, **milliseconds: float) -> None:
    times = {**dict.fromkeys(METHODS, 100.0), **milliseconds}
    (folder / "500k_step_time.json").write_text(json.dumps({"cpu_milliseconds": times}))


def test_the_page_is_that_of_the_results() -> None:
    assert PAGE.read_text() == page(RESULTS)


def test_methods_have_means_and_intervals_against_softmax(tmp_path: Path) -> None:
    """All documents differ by 0.1 alike, so that only seeds make the interval wide."""
    write_times(tmp_path)
    for seed, step in enumerate((-0.01, 0.0, 0.01)):
        write_run(tmp_path, "softmax", seed, 2.0 + step)
        write_run(tmp_path, "hyla", seed, 1.9 + step)
    softmax, hyla = cells_of(tmp_path, "500k")
    assert (softmax.bits, hyla.bits) == pytest.approx((2.0, 1.9))
    assert softmax.error == pytest.approx(0.01 / 3**0.5)
    (pair,) = pairs([softmax, hyla])
    assert pair.difference.value == pytest.approx(-0.1)
    documents, seeds = pair.difference.over_documents, pair.difference.over_seeds
    assert documents.high - documents.low == pytest.approx(0, abs=1e-9)
    assert seeds is not None and seeds.low < -0.1 < seeds.high < 0
    assert "| 500k | hyla | -0.1000 |" in page(tmp_path)


def test_curves_are_read_at_equal_flops_and_equal_time(tmp_path: Path) -> None:
    """HYLA has twice the FLOPs and 4/3 of the time: it is read at 1/2 and 3/4 of its steps."""
    write_times(tmp_path, softmax=90.0, hyla=120.0)
    write_run(tmp_path, "softmax", 0, 2.0)
    write_run(tmp_path, "hyla", 0, 1.5, flops_per_token=2e6)
    cells = cells_of(tmp_path, "500k")
    read = {at: cells[1].bits_at(at, budget(cells, at)) for at in ("tokens", "flops", "seconds")}
    assert read == pytest.approx({"tokens": 1.5, "flops": 2.5, "seconds": 2.0})
    assert "| 500k | hyla | 1.5000 | 2.5000 | 2.0000 |" in page(tmp_path)


def test_the_best_tuning_run_gives_the_rate(tmp_path: Path) -> None:
    write_times(tmp_path)
    for rate, bits in zip(RATES, (1.8, 1.7, 1.9, None), strict=True):
        write_run(tmp_path, "hyla", TUNING_SEED, bits, learning_rate=rate)
    write_run(tmp_path, "hyla", 0, 1.0, learning_rate=RATES[0])
    assert best_rate(read_all(tmp_path), "500k", "hyla") == RATES[1]
    assert "| 1.8000 | **1.7000** | 1.9000 | not finite |" in page(tmp_path)


def test_runs_of_other_documents_are_refused(tmp_path: Path) -> None:
    write_times(tmp_path)
    write_run(tmp_path, "softmax", 0, 2.0)
    write_run(tmp_path, "hyla", 0, 1.9, bytes=[9.0] * 3)
    with pytest.raises(UserError, match="other documents"):
        pairs(cells_of(tmp_path, "500k"))


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
