"""The learning-rate schedule and AdamW against independent implementations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from hyla_lm.optim import OptimizerConfig, make_optimizer, make_schedule
from tests.golden.arrays import assert_close, tree_of

Load = Callable[[str], dict[str, np.ndarray]]
SCHEDULES = Path(__file__).parents[2].parent / "shared" / "golden" / "lr_schedule.json"
# Both sides take differences of float32 near the peak, 6e-8 of it, where the rate is 1% of it.
SCHEDULE_TOLERANCE = 1e-5
# Six updates of 1e-2 times quotients that float32 knows to 1e-6, on parameters of order 1.
ADAMW_TOLERANCE = 1e-5


@pytest.mark.usefixtures("golden")
@pytest.mark.parametrize("column", ["lr_paper_text", "lr_reference"])
@pytest.mark.parametrize("case", ["tiny", "logic_lr3", "raven20M_w3000"])
def test_schedule(case: str, column: str) -> None:
    entries = [entry for entry in json.loads(SCHEDULES.read_text()) if entry["case"] == case]
    peak, warmup, total = (entries[0][name] for name in ("peak", "warmup", "total_steps"))
    early = column == "lr_reference"
    schedule = make_schedule(OptimizerConfig(peak, warmup, cosine_ends_early=early), total)
    rates = schedule(np.array([entry["step"] for entry in entries]))
    expected = [entry[column] for entry in entries]
    assert len(entries) > 8 and max(expected) > 0.9 * peak
    np.testing.assert_allclose(rates, expected, rtol=SCHEDULE_TOLERANCE, atol=0)


@pytest.mark.parametrize(("run", "clip_norm"), [("noclip", None), ("clip1", 1.0)])
def test_six_updates_of_adamw(golden: Load, run: str, clip_norm: float | None) -> None:
    arrays = golden("adamw")

    config = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, clip_norm=clip_norm)
    optimizer = make_optimizer(
        config, make_schedule(config, 8), lambda params: jax.tree.map(lambda p: p.ndim != 1, params)
    )

    @jax.jit
    def step(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = tree_of(arrays, "p0")
    state = jax.jit(optimizer.init)(params)
    for update in range(6):
        params, state = step(tree_of(arrays, f"g{update}"), state, params)
        assert_close(params, tree_of(arrays, f"{run}/p{update + 1}"), ADAMW_TOLERANCE)
