"""Where a run begins: at its own checkpoint, from nothing, or from a checkpoint of another run.

A run that begins from another saves its first step before it trains. From then on it needs the
other no more, and its checkpoints and summary say what it began from.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax

from hyla_lm.checkpoint.checkpoint import ORIGIN, Checkpointer, differences, read_checkpoints
from hyla_lm.checkpoint.checksums import checksums, leaves_by_path, sha256_of
from hyla_lm.config import declare as config
from hyla_lm.config.experiment import Branch, WarmStart
from hyla_lm.errors import UserError
from hyla_lm.parallel.sharding import path_of
from hyla_lm.run.program import Program, identity
from hyla_lm.run.store import RunStore
from hyla_lm.storage import as_path
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import TrainState

NAMES_SHOWN = 6


@dataclass(frozen=True)
class Beginning:
    """State and data position to train from; `must_be_saved` where they come from another run.

    `summary` has rows of the start-up summary.
    """

    state: TrainState
    data: dict[str, Any]
    summary: dict[str, str] = field(default_factory=dict)
    must_be_saved: bool = False


class Source(NamedTuple):
    """A checkpoint of another run, which is only read."""

    checkpoints: Checkpointer
    step: int
    meta: dict[str, Any]


def begin(program: Program[Task], store: RunStore, step: int | None) -> Beginning:
    """The run at a step, at its newest checkpoint, or where its settings let it begin."""
    experiment = program.experiment
    # A branch takes all of its trunk, also what the trunk began from.
    setting = next((s for s in (experiment.branch, experiment.warm_start) if s.run), None)
    if step is not None or store.checkpoints.steps():
        return _resume(program, store, setting, store.checkpoints.choose(step))
    store.check_nothing_saved()
    if isinstance(setting, Branch):
        return _branch(program, store, setting)
    if isinstance(setting, WarmStart):
        return _warm_start(program, store, setting)
    return Beginning(program.init(), {})


def _resume(
    program: Program[Task], store: RunStore, setting: Branch | WarmStart | None, step: int
) -> Beginning:
    path = store.folder.path
    _check_length(program, step, f"{path} holds", "give another --workdir")
    state, data = store.restore(step)
    if setting is not None:
        _check_origin(store.origin, setting, path)
    return Beginning(state, data, _origin_row(store.origin))


def _branch(program: Program[Task], store: RunStore, setting: Branch) -> Beginning:
    with _source(setting) as source:
        where = f"Branch.run = {setting.run!r} is at"
        _check_length(program, source.step, where, "give an earlier Branch.step")
        state, data = store.branch(source.checkpoints, source.step)
    store.origin = _origin(setting, source, state.params)
    return Beginning(state, data, _origin_row(store.origin), must_be_saved=True)


def _warm_start(program: Program[Task], store: RunStore, setting: WarmStart) -> Beginning:
    own = leaves_by_path(program.abstract_state.params)
    with _source(setting) as source:
        matched = match(own, source.checkpoints.parameters(source.step), setting)
        state = program.init()
        params = _take(source, state.params, matched)
    taken = {name: leaf for name, leaf in leaves_by_path(params).items() if name in matched.taken}
    store.origin = _origin(setting, source, taken)
    others = [name for name, *_ in differences(identity(program), source.meta["identity"])]
    numbers = sum(math.prod(own[name].shape) for name in matched.taken)
    summary = {
        **_origin_row(store.origin),
        "taken": f"{len(matched.taken)} of {len(own)} arrays, {numbers:,} parameters",
        "new": _listed(f"{name} {own[name].shape}" for name in matched.new) or "none",
        "left out": _listed(matched.left_out) or "none",
        "differs in": _listed(others) or "none",
    }
    return Beginning(state._replace(params=params), {}, summary, must_be_saved=True)


@contextmanager
def _source(setting: Branch | WarmStart) -> Iterator[Source]:
    """The checkpoint that a setting names; raises UserError for one that is not there."""
    kind = type(setting).__name__
    name = f"{kind}.run = {setting.run!r}"
    with read_checkpoints(as_path(setting.run), name, f"{kind}.step") as checkpoints:
        step = checkpoints.choose(setting.step)
        yield Source(checkpoints, step, checkpoints.meta(step))


def _origin(setting: Branch | WarmStart, source: Source, params: Any) -> dict[str, Any]:
    """What checkpoints and the summary say of the other run, and of what that one began from."""
    folder = source.checkpoints.folder.parent
    return {
        "settings": config.as_dict(setting),
        "run": str(folder if "://" in setting.run else folder.absolute()),
        "step": source.step,
        "parameters": sha256_of(checksums(params)),
        ORIGIN: source.meta.get(ORIGIN),
    }


def _origin_row(origin: Mapping[str, Any] | None) -> dict[str, str]:
    """The row of the start-up summary."""
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


class Match(NamedTuple):
    """Names of parameters, each once: taken, only in this model, and only in the other run.

    A name that the settings leave out is in the last two.
    """

    taken: list[str]
    new: list[str]
    left_out: list[str]


def match(own: Mapping[str, Any], saved: Mapping[str, Any], settings: WarmStart) -> Match:
    """What is taken of saved arrays, both by name, each with its shape and dtype.

    Raises UserError if nothing is, for a shape or dtype that differs, and for a pattern that no
    parameter has.
    """
    for pattern in (*settings.only, *settings.ignore):
        if not any(fnmatchcase(name, pattern) for name in (*own, *saved)):
            raise UserError(f"{pattern!r} of WarmStart names no parameter: correct or remove it.")
    taken = [name for name in own if name in saved and _is_wanted(name, settings)]
    if not taken:
        raise UserError(
            f"WarmStart.run = {settings.run!r} has no parameter to take: it has "
            f"{_listed(saved)} and this model {_listed(own)}."
        )
    odd = [name for name in taken if _kind(own[name]) != _kind(saved[name])]
    if odd:
        name, more = odd[0], f" and {len(odd) - 1} more differ" if len(odd) > 1 else ""
        raise UserError(
            f"WarmStart.run = {settings.run!r} has {name} as {_kind(saved[name])} but this model "
            f"has {_kind(own[name])}{more}: correct the model or name it in WarmStart.ignore."
        )
    new = [name for name in own if name not in taken]
    return Match(taken, new, [name for name in saved if name not in taken])


def _is_wanted(name: str, settings: WarmStart) -> bool:
    is_chosen = not settings.only or any(fnmatchcase(name, p) for p in settings.only)
    return is_chosen and not any(fnmatchcase(name, p) for p in settings.ignore)


def _kind(array: Any) -> str:
    return f"{array.dtype} {tuple(array.shape)}"


def _take(source: Source, params: Any, matched: Match) -> Any:
    """The parameters with those taken from a checkpoint, laid over devices as they were."""

    def wanted(path: Any, leaf: jax.Array) -> jax.ShapeDtypeStruct | None:
        if path_of(path) not in matched.taken:
            return None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)

    shapes = _without_none(jax.tree_util.tree_map_with_path(wanted, params))
    taken = leaves_by_path(source.checkpoints.restore_parameters(source.step, shapes, source.meta))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: taken.get(path_of(path), leaf), params
    )


def _without_none(tree: Any) -> Any:
    """A tree of dicts without the branches that hold only None."""
    if not isinstance(tree, dict):
        return tree
    kept = {name: _without_none(part) for name, part in tree.items()}
    return {name: part for name, part in kept.items() if part is not None} or None


def _listed(names: Iterable[str]) -> str:
    """The first of some names in a line, and how many more there are."""
    names = list(names)
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
