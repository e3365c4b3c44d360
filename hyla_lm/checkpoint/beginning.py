"""Where a run begins: at its own checkpoint, from nothing, or from a checkpoint of another run.

A run that begins from another saves its first step before it trains, so that from then on it is a
run like any other: it needs the other no more, and its checkpoints and summary tell of it.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hyla_lm.checkpoint.checkpoint import ORIGIN, Checkpointer, Damaged, differences, remedy
from hyla_lm.checkpoint.checksums import checksums, sha256_of
from hyla_lm.checkpoint.warm_start import by_name, listed, match, take, told
from hyla_lm.config import declare as config
from hyla_lm.config.experiment import Branch, Experiment, WarmStart
from hyla_lm.errors import UserError
from hyla_lm.logs.costs import SECONDS
from hyla_lm.run.program import Program, identity
from hyla_lm.run.run_store import RunStore
from hyla_lm.storage import as_path, bucket_errors
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import TrainState


@dataclass(frozen=True)
class Beginning:
    """State and data position to train from, what a person is told of them, whether to save them.

    They are saved where they come from another run.
    """

    state: TrainState
    data: dict[str, Any]
    told: dict[str, str] = field(default_factory=dict)
    is_unsaved: bool = False


class Found(NamedTuple):
    """A checkpoint of another run."""

    checkpoints: Checkpointer
    step: int
    meta: dict[str, Any]


def begin(program: Program[Task], store: RunStore, step: int | None) -> Beginning:
    """The run at a step, at its newest checkpoint, or where its settings let it begin."""
    setting = other_run(program.experiment)
    if step is None and not store.saved_steps():
        store.check_nothing_saved()
        if isinstance(setting, Branch):
            return _branched(program, store, setting)
        if setting is not None:
            return _warm_started(program, store, setting)
        return Beginning(program.init(), {})
    return _resumed(program, store, setting, store.choose(step))


def other_run(experiment: Experiment) -> Branch | WarmStart | None:
    """What names another run to begin from; a branch takes its trunk as it is, with its start."""
    settings = (experiment.branch, experiment.warm_start)
    return next((setting for setting in settings if setting.run), None)


def _resumed(
    program: Program[Task], store: RunStore, setting: Branch | WarmStart | None, step: int
) -> Beginning:
    path = store.folder.path
    _check_length(program, step, f"{path} holds", "give another --workdir")
    try:
        state, data = store.restore(step)
    except Damaged as damage:
        raise UserError(f"{damage}: {remedy(step, store.saved_steps())}") from damage
    if setting is not None:
        _check_origin(store.origin, setting, path)
    store.set_aside_after(step)
    return Beginning(state, data, _told_of(store.origin))


def _branched(program: Program[Task], store: RunStore, setting: Branch) -> Beginning:
    with _opened(setting) as found:
        where = f"Branch.run = {setting.run!r} is at"
        _check_length(program, found.step, where, "give an earlier Branch.step")
        state, data = store.branch(found.checkpoints, found.step)
    data.pop(SECONDS, None)  # which its trunk spent
    store.origin = _origin(setting, found, state.params)
    return Beginning(state, data, _told_of(store.origin), is_unsaved=True)


def _warm_started(program: Program[Task], store: RunStore, setting: WarmStart) -> Beginning:
    own = by_name(program.abstract_state.params)
    with _opened(setting) as found:
        matched = match(own, found.checkpoints.parameters(found.step), setting)
        state = program.init()
        params = take(found.checkpoints, found.step, found.meta, state.params, matched)
    taken = {name: leaf for name, leaf in by_name(params).items() if name in matched.taken}
    store.origin = _origin(setting, found, taken)
    others = [name for name, *_ in differences(identity(program), found.meta["identity"])]
    said = {**_told_of(store.origin), **told(matched, own), "differs in": listed(others) or "none"}
    return Beginning(state._replace(params=params), {}, said, is_unsaved=True)


@contextmanager
def _opened(setting: Branch | WarmStart) -> Iterator[Found]:
    """The checkpoint that a setting names, of a run that is only read."""
    name, folder = f"{type(setting).__name__}.run = {setting.run!r}", as_path(setting.run)
    with _readable(name):
        is_there = (folder / "checkpoints").exists()
    if not is_there:
        raise UserError(f"{name} has no checkpoints: give the folder of a run that has trained.")
    with closing(Checkpointer(folder / "checkpoints", keep=None)) as checkpoints:
        step = checkpoints.choose(setting.step)
        try:
            yield Found(checkpoints, step, checkpoints.meta(step))
        except Damaged as damage:
            another = f"give another {type(setting).__name__}.step"
            raise UserError(f"{damage}: {another} of {checkpoints.steps()}.") from damage


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        with bucket_errors(name):
            yield
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror or error}).") from error


def _origin(setting: Branch | WarmStart, found: Found, params: Any) -> dict[str, Any]:
    """What checkpoints and the summary tell of the other run; of its own beginning as well."""
    folder = found.checkpoints.folder.parent
    return {
        "settings": config.as_dict(setting),
        "run": str(folder if "://" in setting.run else folder.absolute()),
        "step": found.step,
        "parameters": sha256_of(checksums(params)),
        ORIGIN: found.meta.get(ORIGIN),
    }


def _told_of(origin: Mapping[str, Any] | None) -> dict[str, str]:
    """A row of the start-up summary."""
    if origin is None:
        return {}
    how = "the parameters of" if origin["settings"]["class"] == WarmStart.__name__ else "all of"
    return {"began from": f"{how} step {origin['step']:,} of {origin['run']}"}


def _check_origin(origin: Mapping[str, Any] | None, setting: Branch | WarmStart, path: Any) -> None:
    """Raises UserError for a run that began otherwise than its settings say now."""
    name = type(setting).__name__
    began = "from nothing" if origin is None else f"with {origin['settings']['class']}"
    if origin is None or origin["settings"]["class"] != name:
        raise UserError(
            f"{path} holds a run that began {began}, so {name}.run = {setting.run!r} cannot be "
            "followed: leave it out or give another --workdir."
        )
    for field_, here, there in differences(config.as_dict(setting), origin["settings"]):
        raise UserError(
            f"{path} holds a run that began with {name}.{field_} = {there!r}, not {here!r}: "
            "correct that setting or give another --workdir."
        )


def _check_length(program: Program[Task], step: int, where: str, otherwise: str) -> None:
    last = program.experiment.train.steps
    if step > last:
        raise UserError(
            f"{where} step {step}, beyond TrainConfig.steps = {last}: "
            f"raise that setting or {otherwise}."
        )
