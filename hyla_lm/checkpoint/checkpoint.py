"""Checkpoints: saved, chosen, restored, and refused where they are damaged; nobody else uses Orbax.

The folder of a step holds the state (params, optimizer, step), the data position with the metrics
not yet logged, and meta, which identifies the run so that another run cannot continue it. Meta has
the checksums of the others and its own hash, and all are compared when a checkpoint is read.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from etils import epath

from hyla_lm.checkpoint.checksums import (
    CHECKPOINTS,
    checksums,
    is_sealed,
    leaves_by_path,
    sealed,
    sha256_of,
)
from hyla_lm.config.declare import REGISTRY, defaults
from hyla_lm.ending import reason_of
from hyla_lm.errors import Unavailable, UserError, is_forbidden, passes
from hyla_lm.parallel import processes
from hyla_lm.storage import (
    bucket_of,
    check_bucket_access,
    exists,
    read_whole,
    retrying,
    storage_errors,
)

# Without it TensorStore, which writes the arrays, waits forever on a dead connection.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "60")

COMMITTED = "commit_success.txt"
META, ARRAYS = "meta/metadata", "state/manifest.ocdbt"  # Orbax's files
ORIGIN = "origin"  # in the meta of runs that began from another
T = TypeVar("T")


class Damaged(UserError):
    """A checkpoint that does not hold what was saved, or cannot be read."""


class Checkpointer:
    """Saves and restores a run's checkpoints; a failed background save raises at the next call.

    On a disk a whole checkpoint is renamed. In a bucket a checkpoint is whole once it holds
    commit_success.txt, which Orbax writes last. Without `keep` nothing is written or deleted.
    Raises UserError for a bucket that Orbax has no permission to look at.
    """

    def __init__(self, folder: epath.Path, keep: int | None = None):
        self.folder = folder
        if bucket_of(folder):
            check_bucket_access(folder)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=keep is not None,
            cleanup_tmp_directories=keep is not None,
            enable_async_checkpointing=True,
        )
        self._orbax_folder = folder if bucket_of(folder) else folder.absolute()
        opened = partial(ocp.CheckpointManager, self._orbax_folder, options=options)
        is_patient = jax.process_count() == 1  # several processes open it together
        self._manager = retrying(opened, folder, "opened", is_patient)
        self._saving: int | None = None  # the step of the save that is not known to be whole
        self._has_failed = False

    def steps(self) -> list[int]:
        """The steps with a whole checkpoint; Orbax takes what it cannot look at for missing."""
        folder, in_bucket = self._orbax_folder, bucket_of(self.folder)
        try:
            names = retrying(lambda: [path.name for path in folder.iterdir()], folder, "listed")
        except FileNotFoundError:
            return []
        steps = sorted(int(name) for name in names if name.isdigit())
        return [s for s in steps if not in_bucket or exists(folder / str(s) / COMMITTED)]

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
        """Raises the error of a failed background save, and of one that left no checkpoint."""
        if not self._manager.is_saving_in_progress():
            self.wait()

    def is_saving(self) -> bool:
        """Whether a save is under way, or is not known to be whole."""
        return self._saving is not None

    def save(self, step: int, state: Any, data: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Starts saving a step in the background, when the save before has ended."""
        sums = {"state": checksums(state), "data": sha256_of(data)}
        self.wait()
        self._saving = step
        with self._saving_errors():
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

        def read() -> dict[str, Any]:
            args = ocp.args.Composite(meta=ocp.args.JsonRestore())
            meta = self._manager.restore(step, args=args)["meta"]
            if not is_sealed(meta):
                raise ValueError("its meta differs from its hash")
            return dict(meta)

        return self._read(step, read)

    def restore(
        self, step: int, abstract_state: Any, meta: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The state, sharded like the abstract state, and the data position.

        Raises Damaged where they differ from the checksums of meta.
        """

        def read() -> tuple[Any, dict[str, Any]]:
            args = ocp.args.Composite(
                state=ocp.args.StandardRestore(abstract_state), data=ocp.args.JsonRestore()
            )
            saved = self._manager.restore(step, args=args)
            state, data = saved["state"], dict(saved["data"])
            if sha256_of(data) != meta["checksums"]["data"]:
                raise ValueError("its data position differs from its hash")
            _check_arrays(checksums(state), meta["checksums"]["state"])
            return state, data

        return self._read(step, read)

    def contents(self, step: int, meta: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """`restore` to the memory of this host, whatever devices saved it."""
        device = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])

        def on_host(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device)

        return self.restore(step, jax.tree.map(on_host, self._shapes(step)), meta)

    def parameters(self, step: int) -> dict[str, Any]:
        """The parameters of a step as Orbax describes them: shape and dtype by name."""
        return leaves_by_path(self._shapes(step)["params"])

    def _shapes(self, step: int) -> Any:
        def read() -> Any:
            with ocp.PyTreeCheckpointer() as reader:
                return reader.metadata(self._state_folder(step)).item_metadata.tree

        return self._read(step, read)

    def restore_parameters(self, step: int, wanted: Any, meta: Mapping[str, Any]) -> Any:
        """Some parameters of a step, a tree of shapes with shardings; Damaged as by `restore`."""
        item = {"params": wanted}
        arguments = ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        )

        def read() -> Any:
            with ocp.PyTreeCheckpointer() as reader:
                saved = reader.restore(self._state_folder(step), args=arguments)
            sums = checksums(saved)
            _check_arrays(sums, {name: meta["checksums"]["state"].get(name) for name in sums})
            return saved["params"]

        return self._read(step, read)

    def reload(self) -> None:
        """Lets Orbax list the folder again, from which it deletes."""
        self._manager.reload()

    def wait(self) -> None:
        """Waits for background saves; raises the error of a failed one.

        Orbax raises it once in a thread, and in `check_for_errors` not at all: its own thread takes
        it there. So a save counts when its checkpoint is there, and is the one that was saved.
        """
        if self._saving is None:
            return
        with self._saving_errors():
            self._manager.wait_until_finished()
            if processes.is_process_0():
                _check_whole(self._orbax_folder / str(self._saving))
        self._saving = None

    def close(self) -> None:
        """Waits for background saves, raises the error of a failed one, and closes."""
        self.wait()
        try:
            self._manager.close()
        except Exception:
            if not self._has_failed:  # else Orbax raises again what is raised already
                raise

    def _state_folder(self, step: int) -> epath.Path:
        return self._orbax_folder / str(step) / "state"

    # Orbax, TensorStore, JSON parsers and bucket clients raise errors of many classes. What they
    # raise becomes a sentence on the checkpoint in these two functions, and nowhere else.

    def _read(self, step: int, read: Callable[[], T]) -> T:
        """What `read` gives of a step, tried again as storage.retrying does.

        What seems damaged is read twice, since Orbax takes what it cannot look at for missing.
        Several processes read together, so one of them does not try again. Raises UserError for one
        that may not be read, and Damaged, with the step to read instead, for anything else that
        `read` raises.
        """
        path, is_single = self.folder / str(step), jax.process_count() == 1
        try:
            try:
                return retrying(read, path, is_patient=is_single)
            except Exception as error:
                if not is_single or isinstance(error, UserError) or is_forbidden(error):
                    raise
            return retrying(read, path)
        except UserError:
            raise
        except Exception as error:
            failure, reason = error, reason_of(error)
        if is_forbidden(failure):
            raise UserError(f"{path} cannot be read ({reason}): allow it, then start again.")
        remedy = "no earlier step is left, so train again in another folder"
        if earlier := [saved for saved in self.steps() if saved < step]:
            remedy = f"take step {earlier[-1]}, or move it elsewhere"
        raise Damaged(f"{path} cannot be restored ({reason}): {remedy}.") from failure

    @contextmanager
    def _saving_errors(self) -> Iterator[None]:
        """Unavailable, or UserError where a person must mend it, for what the last save raises."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            path = self.folder / str(self._saving)
            self._saving, self._has_failed = None, True
            sentence = f"checkpoint {path} could not be saved ({reason_of(error)})"
            if passes(error) is False:
                raise UserError(f"{sentence}: make room or mend that, and start again.") from error
            raise Unavailable(f"{sentence}: check the storage and start again.") from error


def near_run(path: epath.Path) -> str:
    """What to give instead of a folder without a run: one in it or around it, if there is one."""
    if exists(path / "config.json"):
        return "it is an exported model, so give the run that it came from"
    inside = sorted(path.iterdir()) if path.is_dir() else []
    for near in (*inside, *list(path.parents)[:2]):
        if exists(near / CHECKPOINTS):
            return f"give {near}"
    return "give the folder of a run that has trained"


@contextmanager
def read_checkpoints(run: epath.Path, name: str) -> Iterator[Checkpointer]:
    """The checkpoints of a run that is only read; raises UserError where it has none.

    `name` is how the user named the run.
    """
    with storage_errors(run, "read", f"correct {name}"):
        is_trained = exists(run / CHECKPOINTS)
    if not is_trained:
        raise UserError(f"{name} has no checkpoints: {near_run(run)}.")
    with closing(Checkpointer(run / CHECKPOINTS)) as checkpoints:
        yield checkpoints


def restore_run(
    checkpoints: Checkpointer,
    step: int,
    identity: Mapping[str, Any],
    abstract_state: Any,
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """State, data position and meta of a step that the run of this identity has saved.

    Raises UserError for a checkpoint of another run, and Damaged.
    """
    run, meta = checkpoints.folder.parent, checkpoints.meta(step)
    check_same_run(meta["identity"], identity, run)
    return *checkpoints.restore(step, abstract_state, meta), meta


def _check_whole(step: epath.Path) -> None:
    """Raises OSError where a step lacks a file, or its meta is not whole; such a step is removed.

    Orbax merges the arrays of the processes that it finds, and it may find none when a disk fails.
    """
    needed = (META, ARRAYS, *([COMMITTED] if bucket_of(step) else ()))
    lacking = [name for name in needed if not exists(step / name)]
    if lacking or not _is_whole(read_whole(step / META)):
        step.rmtree(missing_ok=True)
        raise OSError(errno.EIO, f"{lacking[0] if lacking else META} is not whole")


def _is_whole(meta: bytes | None) -> bool:
    try:
        return is_sealed(json.loads(meta or b"{}"))
    except ValueError:
        return False


def _check_arrays(sums: Mapping[str, str], saved: Mapping[str, str]) -> None:
    for name in sorted({*sums, *saved}):
        if sums.get(name) != saved.get(name):
            raise ValueError(f"{name} differs from its checksum")


def check_same_run(
    saved: Mapping[str, Any], current: Mapping[str, Any], workdir: epath.Path
) -> None:
    """Raises UserError naming the first field in which a checkpoint's run differs from this run."""
    for name, here, there in differences(current, saved):
        raise UserError(
            f"{workdir} holds a run with {name} = {there!r} but this run has {here!r}: correct "
            "that setting or give another --workdir."
        )


def differences(
    current: Mapping[str, Any], saved: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """(dotted name, current, saved) of each leaf that differs.

    A setting that one side lacks has its default: that is what it did before there was a setting.
    """
    differing: list[tuple[str, Any, Any]] = []
    current, saved = _with_defaults(current), _with_defaults(saved)
    for name in sorted({*current, *saved}):
        here, there = current.get(name), saved.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            differing += differences(here, there, f"{prefix}{name}.")
        elif here != there:
            differing.append((f"{prefix}{name}", here, there))
    return differing


def _with_defaults(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Saved settings with the defaults of fields that their class did not have then."""
    kind = REGISTRY.get(settings.get("class", ""))
    return settings if kind is None else {**defaults(kind), **settings}
