"""A save that fails names the checkpoint that it did not make, however long the reason is."""

from contextlib import closing
from pathlib import Path
from typing import NoReturn

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from etils import epath

from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.errors import UserError


def full(*_: object, **__: object) -> NoReturn:
    raise OSError("no space left" + 5000 * " on it")


@pytest.mark.parametrize(("call", "named"), [("wait_until_finished", 3), ("save", 4)])
def test_a_failed_save_is_named(
    call: str, named: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"x": jnp.ones(3)}
    with closing(Checkpointer(epath.Path(tmp_path), keep=2)) as checkpoints:
        checkpoints.save(3, state, {}, {})
        with monkeypatch.context() as patch:
            patch.setattr(ocp.CheckpointManager, call, full)
            with pytest.raises(UserError) as error:
                checkpoints.save(4, state, {}, {})
        assert checkpoints.steps() == [3]
    said = str(error.value)
    assert said.startswith(f"checkpoint {tmp_path}/{named} could not be saved (no space left on it")
    assert said.endswith("free space or mend the disk, and start again.")
