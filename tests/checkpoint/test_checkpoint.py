"""Checksums show every change, a failed save is named, and another run is refused."""

import errno
import os
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from orbax.checkpoint._src.metadata import checkpoint as metadata
from orbax.checkpoint._src.path.atomicity import AtomicRenameTemporaryPath as Commits

from hyla_lm import storage
from hyla_lm.checkpoint.checkpoint import Checkpointer, Damaged, check_same_run
from hyla_lm.checkpoint.checksums import checksums
from hyla_lm.config.declare import as_dict
from hyla_lm.errors import Unavailable, UserError, passes
from hyla_lm.model.config import ModelConfig


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(), (5, 3)])
def test_every_change_of_a_word_and_of_its_place_changes_the_sum(shape, dtype) -> None:
    values = (np.random.default_rng(0).standard_normal(shape) * 8).astype(dtype)

    def sum_of(array: np.ndarray) -> str:
        return checksums({"x": jnp.asarray(array)})["x"]

    before = sum_of(values)
    flat = np.atleast_1d(values).reshape(-1)
    for place in range(flat.size):
        changed = flat.copy()
        changed[place] = ~changed[place] if dtype == np.bool_ else -changed[place] - 1
        assert sum_of(changed.reshape(shape)) != before
    for place in range(1, flat.size):
        changed = flat.copy()
        changed[[0, place]] = changed[[place, 0]]
        if changed[0] != flat[0]:
            assert sum_of(changed.reshape(shape)) != before


def test_words_that_change_places_across_the_diagonal_change_the_sum() -> None:
    words = jnp.array([[0, 1], [2, 0]])
    assert checksums({"x": words}) != checksums({"x": words.T})


def test_a_sum_is_that_of_the_shards_of_which_copies_count_once() -> None:
    whole = np.arange(12).reshape(4, 3)

    def shard(rows: slice, copy: int) -> SimpleNamespace:
        return SimpleNamespace(data=whole[rows], index=(rows, slice(None)), replica_id=copy)

    shards = [shard(rows, copy) for rows in (slice(0, 2), slice(2, 4)) for copy in (0, 1)]
    split = SimpleNamespace(addressable_shards=shards)
    one = SimpleNamespace(addressable_shards=[shard(slice(None), 0)])
    assert checksums({"x": split}) == checksums({"x": one})


def full(*_: object, **__: object) -> NoReturn:
    raise OSError("No space left on device" + 5000 * " and on")


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
        checkpoints._manager.wait_until_finished()
        assert checkpoints.steps() == [3]
    said = str(error.value)
    assert said.startswith(
        f"checkpoint {tmp_path}/{named} could not be saved (No space left on device and on"
    )
    assert said.endswith("make room or mend that, and start again.")


def failing_commits(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Orbax's renaming of a whole checkpoint fails, in its own thread."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Commits, "finalize", fail)


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, Unavailable), (errno.ENOSPC, UserError)])
def test_a_save_that_fails_in_the_background_is_known_before_it_counts(
    number: int, kind: type[UserError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_commits(monkeypatch, number)
    checkpoints = Checkpointer(epath.Path(tmp_path), keep=2)
    checkpoints.save(3, {"x": jnp.ones(3)}, {}, {})
    with pytest.raises(UserError, match=os.strerror(number)) as raised:
        while checkpoints.is_saving():
            checkpoints.check()
    assert type(raised.value) is kind
    assert checkpoints.steps() == []
    checkpoints.close()


def test_a_save_whose_arrays_were_not_merged_is_none_and_the_step_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbax finds no arrays to merge where the disk does not list its folder."""
    state = {"x": jnp.ones(3)}
    with closing(Checkpointer(epath.Path(tmp_path), keep=2)) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr("etils.epath.gpath._GPath.glob", lambda *_: iter(()))
            checkpoints.save(3, state, {}, {})
            with pytest.raises(Unavailable, match="checkpoint .*/3 could not be saved .*manifest"):
                checkpoints.wait()
        assert checkpoints.steps() == []
    with closing(Checkpointer(epath.Path(tmp_path), keep=2)) as checkpoints:
        checkpoints.save(3, state, {}, {})
        checkpoints.wait()
        assert checkpoints.contents(3, checkpoints.meta(3))[0]["x"].tolist() == [1, 1, 1]


def test_a_failed_save_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orbax raises it again when it closes."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise ValueError("injected, 500")

    for call in ("write", "update"):
        monkeypatch.setattr(metadata._MetadataStoreImpl, call, fail)
    with (
        pytest.raises(Unavailable, match="checkpoint .*/3 could not be saved"),
        closing(Checkpointer(epath.Path(tmp_path), keep=2)) as checkpoints,
    ):
        checkpoints.save(3, {"x": jnp.ones(3)}, {}, {})
        checkpoints.wait()


def test_a_save_without_a_checkpoint_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpointer(epath.Path(tmp_path), keep=2)
    checkpoints.save(3, {"x": jnp.ones(3)}, {}, {})
    checkpoints._manager.wait_until_finished()
    shutil.rmtree(tmp_path / "3")
    with pytest.raises(UserError, match="checkpoint .*/3 could not be saved"):
        checkpoints.check()


@pytest.mark.parametrize(
    ("errors", "says"),
    [
        ([OSError(errno.ESTALE, "stale"), OSError(errno.EIO, "io"), ValueError("503")], None),
        ([OSError(errno.EIO, "io")] * 9, "cannot be read now .*: start again"),
        ([PermissionError(errno.EACCES, "no")], "cannot be read .*: allow it"),
        ([ValueError("half a file")], None),
        ([ValueError("a flipped bit")] * 2, "cannot be restored .* take step 3"),
    ],
)
def test_a_read_is_tried_again_while_its_error_may_pass(
    errors: list[Exception], says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(storage, "GIVE_UP_SECONDS", 60.0)
    monkeypatch.setattr("time.monotonic", lambda: sum(slept))
    monkeypatch.setattr("time.sleep", slept.append)
    restore, left = ocp.CheckpointManager.restore, list(errors)

    def restore_later(*given: Any, **named: Any) -> Any:
        if left:
            raise left.pop(0)
        return restore(*given, **named)

    with closing(Checkpointer(epath.Path(tmp_path), keep=2)) as checkpoints:
        for step in (3, 4):
            checkpoints.save(step, {"x": jnp.ones(3)}, {}, {"run": "a"})
        checkpoints.wait()
        monkeypatch.setattr(ocp.CheckpointManager, "restore", restore_later)
        if says is None:
            assert checkpoints.meta(4)["run"] == "a"
            assert len(slept) == sum(map(bool, map(passes, errors))) and slept == sorted(slept)
        else:
            with pytest.raises(UserError, match=says) as raised:
                checkpoints.meta(4)
            assert isinstance(raised.value, Damaged) == ("restored" in says)
            assert isinstance(raised.value, Unavailable) == ("now" in says)


def identity(rows: str | None = "a", **fields: object) -> dict[str, object]:
    data = {} if rows is None else {"rows": rows}
    return {"ModelConfig": as_dict(ModelConfig(**fields)), "data": data}


OLDER = identity()
OLDER["ModelConfig"] = {
    name: value
    for name, value in OLDER["ModelConfig"].items()  # type: ignore[attr-defined]
    if name not in ("scan_layers", "value_dim")
}


def test_a_setting_that_is_newer_than_a_checkpoint_has_its_default_there() -> None:
    check_same_run(OLDER, identity(), epath.Path("run"))


@pytest.mark.parametrize(
    ("saved", "current", "says"),
    [
        (OLDER, identity(scan_layers=True), "scan_layers = False but this run has True"),
        (identity("b"), identity(), r"data\.rows = 'b' but this run has 'a'"),
        (identity(None), identity(), r"data\.rows = None but this run has 'a'"),
    ],
)
def test_another_run_is_refused(saved: dict, current: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_same_run(saved, current, epath.Path("run"))
