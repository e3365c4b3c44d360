"""Checkpoints and resume; the only importer of Orbax.

The folder of a step holds the state (params, optimizer, step), the data position with the metrics
not yet logged, and meta, which identifies the run so that another run cannot continue it.
"""

import os
from collections.abc import Mapping
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from hyla_lm.config import UserError
from hyla_lm.input.files import bucket_of, look_at_bucket

# Without it TensorStore, which writes the arrays, waits forever on a dead connection.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "60")


class Checkpointer:
    """Saves and restores a run's checkpoints; a failed background save raises at the next call.

    On a disk a whole checkpoint is renamed. In a bucket a checkpoint is whole once it holds
    commit_success.txt, which Orbax writes last. Raises UserError for a bucket that Orbax has no
    permission to look at.
    """

    def __init__(self, folder: epath.Path, keep: int):
        self._folder = folder
        if bucket_of(folder):
            look_at_bucket(folder)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, enable_async_checkpointing=True
        )
        place = folder if bucket_of(folder) else folder.absolute()
        self._manager = ocp.CheckpointManager(place, options=options)

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """The steps with a whole checkpoint."""
        return sorted(self._manager.all_steps())

    def check(self) -> None:
        """Raises the error of a failed background save."""
        self._manager.check_for_errors()

    def save(self, step: int, state: Any, data: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Starts saving a step in the background."""
        self.check()
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                data=ocp.args.JsonSave(dict(data)),
                meta=ocp.args.JsonSave(dict(meta)),
            ),
            force=True,
        )

    def meta(self, step: int) -> dict[str, Any]:
        """The meta of a step: the identity of the run that saved it."""
        restored = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
        return dict(restored["meta"])

    def restore(self, step: int, abstract_state: Any) -> tuple[Any, dict[str, Any]]:
        """The state, sharded like the abstract state, and the data position."""
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(abstract_state), data=ocp.args.JsonRestore()
            ),
        )
        return restored["state"], dict(restored["data"])

    def drop_after(self, step: int) -> None:
        """Deletes the checkpoints of later steps."""
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def wait(self) -> None:
        """Waits for background saves; raises the error of a failed one."""
        self._manager.wait_until_finished()
        self.check()

    def close(self) -> None:
        """Waits for background saves, raises the error of a failed one, and closes."""
        self.wait()
        self._manager.close()


def check_same_run(
    saved: Mapping[str, Any], current: Mapping[str, Any], workdir: epath.Path
) -> None:
    """Raises UserError naming the first field in which a checkpoint's run differs from this run."""
    for name, here, there in differences(current, saved):
        raise UserError(
            f"{workdir} holds a run with {name} = {there!r} but this run has {here!r}: "
            "correct that setting or give another --workdir."
        )


def differences(
    current: Mapping[str, Any], saved: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """(dotted name, current, saved) of each leaf that differs."""
    found: list[tuple[str, Any, Any]] = []
    for name in sorted({*current, *saved}):
        here, there = current.get(name), saved.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found += differences(here, there, f"{prefix}{name}.")
        elif here != there:
            found.append((f"{prefix}{name}", here, there))
    return found
