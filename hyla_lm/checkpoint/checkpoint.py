"""Checkpoints and resume; the only importer of Orbax.

The folder of a step holds the state (params, optimizer, step), the data position with the metrics
not yet logged, and meta, which identifies the run so that another run cannot continue it. Meta has
the checksums of the others and its own hash, and all are compared when a checkpoint is read.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from hyla_lm.checkpoint.checksums import checksums, is_sealed, sealed, sha256_of
from hyla_lm.config.declare import REGISTRY, defaults
from hyla_lm.ending import reason_of
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.parallel.mesh import path_of
from hyla_lm.storage import bucket_errors, bucket_of, look_at_bucket

# Without it TensorStore, which writes the arrays, waits forever on a dead connection.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "60")

META = {"identity", "gin", "versions"}
SEALED_META = META | {"numerics", "checksums", "sha256"}
ORIGIN = "origin"  # in the meta of runs that began from another
DATA = {"streams", "window"}
UNFINISHED = ".orbax-checkpoint-tmp"
OTHER_WORKDIR = "correct that setting or give another --workdir"

log = logging.getLogger(__name__)


class Damaged(UserError):
    """A checkpoint that does not hold what was saved, or cannot be read."""


class Checkpointer:
    """Saves and restores a run's checkpoints; a failed background save raises at the next call.

    On a disk a whole checkpoint is renamed. In a bucket a checkpoint is whole once it holds
    commit_success.txt, which Orbax writes last. Without `keep` nothing is written or deleted.
    Raises UserError for a bucket that Orbax has no permission to look at, and for a folder with
    something else among the checkpoints.
    """

    def __init__(self, folder: epath.Path, keep: int | None):
        self.folder = folder
        if bucket_of(folder):
            look_at_bucket(folder)
        _reject_foreign(folder)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=keep is not None,
            read_only=keep is None,
            cleanup_tmp_directories=keep is not None,
            enable_async_checkpointing=True,
        )
        self._place = folder if bucket_of(folder) else folder.absolute()
        self._manager = ocp.CheckpointManager(self._place, options=options)
        self._saving = 0  # the step of the last save

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """The steps with a whole checkpoint."""
        return sorted(self._manager.all_steps())

    def choose(self, step: int | None) -> int:
        """The step, or the newest; raises UserError for one that is not saved."""
        steps, run = self.steps(), self.folder.parent
        if not steps:
            raise UserError(f"{run} has no checkpoint yet: train it first.")
        if step is not None and step not in steps:
            known = ", ".join(map(str, steps))
            raise UserError(f"{run} has no checkpoint of step {step} (it has {known}).")
        return steps[-1] if step is None else step

    def check(self) -> None:
        """Raises the error of a failed background save."""
        with self._storage_errors():
            self._manager.check_for_errors()

    def is_saving(self) -> bool:
        return self._manager.is_saving_in_progress()

    def save(self, step: int, state: Any, data: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Starts saving a step in the background, when the save before has ended."""
        sums = {"state": checksums(state), "data": sha256_of(data)}
        self.wait()
        self._saving = step
        with self._storage_errors():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state),
                    data=ocp.args.JsonSave(dict(data)),
                    meta=ocp.args.JsonSave(sealed({**meta, "checksums": sums})),
                ),
                force=True,
            )

    def meta(self, step: int) -> dict[str, Any]:
        """The meta of a step: the identity of the run that saved it."""
        with self._reading(step):
            meta = self._restore(step, meta=ocp.args.JsonRestore())["meta"]
            names = set(meta) - {ORIGIN}
            if set(meta) != META and (names != SEALED_META or not is_sealed(meta)):
                raise Damaged("its meta differs from its hash")
            return dict(meta)

    def restore(
        self, step: int, abstract_state: Any, meta: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The state, sharded like the abstract state, and the data position.

        Raises Damaged where they differ from the checksums of meta. Checkpoints of the first
        versions have none, which is said.
        """
        with self._reading(step):
            found = self._restore(
                step,
                state=ocp.args.StandardRestore(abstract_state),
                data=ocp.args.JsonRestore(),
            )
            state, data = found["state"], dict(found["data"])
            _check_sums(state, data, meta.get("checksums"))
        if "checksums" not in meta:
            log.info("step %d was saved by a version without checksums: it is not verified", step)
        return state, data

    def contents(self, step: int, meta: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """`restore` to the memory of this host, whatever devices saved it."""
        device = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])

        def on_host(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device)

        with self._reading(step):
            saved = self._manager.item_metadata(step)["state"]
            abstract_state = jax.tree.map(on_host, saved)
        return self.restore(step, abstract_state, meta)

    def parameters(self, step: int) -> dict[str, Any]:
        """The parameters of a step as Orbax describes them: shape and dtype by name."""
        with self._reading(step), ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(self._state(step)).item_metadata.tree["params"]
        return {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}

    def restore_parameters(self, step: int, wanted: Any, meta: Mapping[str, Any]) -> Any:
        """Some parameters of a step, a tree of shapes with shardings; Damaged as by `restore`."""
        item = {"params": wanted}
        arguments = ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        )
        with self._reading(step), ocp.PyTreeCheckpointer() as reader:
            found = reader.restore(self._state(step), args=arguments)
            if "checksums" in meta:
                sums = checksums(found)
                _check_arrays(sums, {name: meta["checksums"]["state"].get(name) for name in sums})
        return found["params"]

    def drop_after(self, step: int) -> None:
        """Deletes the checkpoints of later steps."""
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def reload(self) -> None:
        """Looks again at what the folder holds."""
        self._manager.reload()

    def wait(self) -> None:
        """Waits for background saves; raises the error of a failed one."""
        with self._storage_errors():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Waits for background saves, raises the error of a failed one, and closes."""
        self.wait()
        self._manager.close()

    def _state(self, step: int) -> epath.Path:
        return self._place / str(step) / "state"

    def _restore(self, step: int, **items: Any) -> Any:
        return self._manager.restore(step, args=ocp.args.Composite(**items))

    @contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        """Names the checkpoint, whatever Orbax, TensorStore or a JSON parser raises for it."""
        try:
            yield
        except Exception as error:
            place = self.folder / str(step)
            raise Damaged(f"{place} cannot be restored ({reason_of(error)})") from error

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Names the checkpoint for what Orbax or TensorStore raises while it saves."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            place = self.folder / str(self._saving)
            sentence = f"checkpoint {place} could not be saved ({reason_of(error)})"
            if bucket_of(self.folder):
                raise Unavailable(f"{sentence}: check the storage and start again.") from error
            raise UserError(f"{sentence}: free space or mend the disk, and start again.") from error


def remedy(step: int, steps: list[int]) -> str:
    """How a run goes on whose checkpoint of this step is damaged."""
    if earlier := [known for known in steps if known < step]:
        return f"go on from step {earlier[-1]} with --step={earlier[-1]}; later ones are set aside."
    return "no earlier one is left: train again in another --workdir."


def _check_sums(state: Any, data: Mapping[str, Any], saved: Mapping[str, Any] | None) -> None:
    """Raises Damaged, naming what differs from its checksum."""
    if missing := sorted(DATA - set(data)):
        raise Damaged(f"its data lacks {missing[0]!r}")
    if saved is None:
        return
    if sha256_of(data) != saved["data"]:
        raise Damaged("its data position differs from its hash")
    _check_arrays(checksums(state), saved["state"])


def _check_arrays(found: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for name in sorted({*found, *saved}):
        if found.get(name) != saved.get(name):
            raise Damaged(f"{name} differs from its checksum")


def _reject_foreign(folder: epath.Path) -> None:
    with bucket_errors(folder):
        names = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    for name in names:
        if not name.isdecimal() and UNFINISHED not in name and not name.startswith("."):
            raise UserError(f"{folder} holds {name!r}, which is no checkpoint: move it elsewhere.")


def check_same_run(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    workdir: epath.Path,
    remedy: str = OTHER_WORKDIR,
) -> None:
    """Raises UserError naming the first field in which a checkpoint's run differs from this run."""
    for name, here, there in differences(current, saved):
        raise UserError(
            f"{workdir} holds a run with {name} = {there!r} but this run has {here!r}: {remedy}."
        )


def differences(
    current: Mapping[str, Any], saved: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """(dotted name, current, saved) of each leaf that differs.

    A setting that one side lacks has its default: that is what it did before there was a setting.
    """
    found: list[tuple[str, Any, Any]] = []
    current, saved = with_defaults(current), with_defaults(saved)
    for name in sorted({*current, *saved}):
        here, there = current.get(name), saved.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found += differences(here, there, f"{prefix}{name}.")
        elif here != there:
            found.append((f"{prefix}{name}", here, there))
    return found


def with_defaults(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Saved settings with the defaults of fields that their class did not have then."""
    kind = REGISTRY.get(settings.get("class", ""))
    return settings if kind is None else {**defaults(kind), **settings}
