"""Where a run begins: at its own checkpoint, from nothing, or from a checkpoint of another run.

A run that begins from another saves its first step before it trains. From then on it needs the
other no more, and its checkpoints and summary say what it began from.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from hyla_lm.checkpoint.checkpoint import ORIGIN, Checkpointer, differences, read_checkpoints
from hyla_lm.config import declare as config
from hyla_lm.config.experiment import WarmStart
from hyla_lm.errors import UserError
from hyla_lm.run.program import Program, identity
from hyla_lm.run.store import RunStore
from hyla_lm.storage import as_path
from hyla_lm.tasks.protocol import Task

NAMES_SHOWN = 6


@dataclass(frozen=True)
class Beginning:
    """State and data position to train from; `must_be_saved` where they come from another run.

    `summary` has rows of the start-up summary.
    """

    state: Any
    data: dict[str, Any]
    summary: dict[str, str] = field(default_factory=dict)
    must_be_saved: bool = False


def begin(program: Program[Task], store: RunStore, step: int | None) -> Beginning:
    """The run at a step, at its newest checkpoint, or where its settings let it begin."""
    setting = program.experiment.warm_start
    if step is not None or store.checkpoints.steps():
        return _resume(program, store, setting, store.checkpoints.choose(step))
    store.check_nothing_saved()
    if not setting.run:
        return Beginning(program.init(), {})
    with read_checkpoints(as_path(setting.run), f"WarmStart.run = {setting.run!r}") as other:
        return _warm_start(program, store, setting, other)


def _resume(program: Program[Task], store: RunStore, setting: WarmStart, step: int) -> Beginning:
    path, last = store.folder.path, program.experiment.train.steps
    if step > last:
        raise UserError(
            f"{path} holds step {step}, beyond TrainConfig.steps = {last}: raise that setting or "
            "give another --workdir."
        )
    state, data = store.restore(step)
    if setting.run:
        _check_origin(store.origin, setting, path)
    return Beginning(state, data, _origin_row(store.origin))


def _warm_start(
    program: Program[Task], store: RunStore, setting: WarmStart, other: Checkpointer
) -> Beginning:
    step = other.choose(setting.step)
    meta, folder = other.meta(step), other.folder.parent
    own = flatten_dict(program.abstract_state.params, sep="/")
    names, new, left_out = match(own, other.parameters(step), setting)
    wanted = unflatten_dict({name: own[name] for name in names}, sep="/")
    taken = other.restore_parameters(step, wanted, meta)
    state = program.init()
    params = flatten_dict(state.params, sep="/") | flatten_dict(taken, sep="/")
    store.origin = {
        "settings": config.as_dict(setting),
        "run": str(folder if "://" in setting.run else folder.absolute()),
        "step": step,
        ORIGIN: meta.get(ORIGIN),
    }
    others = [name for name, *_ in differences(identity(program), meta["identity"])]
    numbers = sum(math.prod(own[name].shape) for name in names)
    summary = {
        **_origin_row(store.origin),
        "taken": f"{len(names)} of {len(own)} arrays, {numbers:,} parameters",
        "new": _listed(f"{name} {own[name].shape}" for name in new) or "none",
        "left out": _listed(left_out) or "none",
        "differs in": _listed(others) or "none",
    }
    state = state._replace(params=unflatten_dict(params, sep="/"))
    return Beginning(state, {}, summary, must_be_saved=True)


def _origin_row(origin: Mapping[str, Any] | None) -> dict[str, str]:
    """The row of the start-up summary."""
    return {"began from": f"step {origin['step']:,} of {origin['run']}"} if origin else {}


def _check_origin(origin: Mapping[str, Any] | None, setting: WarmStart, path: Any) -> None:
    """Raises UserError for a run that began otherwise than its settings say now."""
    if origin is None:
        raise UserError(
            f"{path} holds a run that began from nothing: leave WarmStart.run out or give another "
            "--workdir."
        )
    for name, here, there in differences(config.as_dict(setting), origin["settings"]):
        raise UserError(
            f"{path} holds a run that began with WarmStart.{name} = {there!r}, not {here!r}: "
            "correct that setting or give another --workdir."
        )


def match(
    own: Mapping[str, Any], saved: Mapping[str, Any], settings: WarmStart
) -> tuple[list[str], list[str], list[str]]:
    """What is taken of saved arrays, both by name, each with its shape and dtype.

    Gives the names that are taken, only in this model, and only in the other run. A name that the
    settings leave out is in the last two.

    Raises UserError if nothing is, for a shape or dtype that differs, and for a pattern that no
    parameter has.
    """
    for pattern in (*settings.only, *settings.ignore):
        if not any(fnmatchcase(name, pattern) for name in (*own, *saved)):
            raise UserError(f"{pattern!r} of WarmStart names no parameter: correct or remove it.")
    taken = [name for name in own if name in saved and _is_wanted(name, settings)]
    if not taken:
        raise UserError(
            f"WarmStart.run = {settings.run!r} has no parameter to take: correct WarmStart.only "
            "and WarmStart.ignore, or give another run."
        )
    for name in taken:
        if _kind(own[name]) != _kind(saved[name]):
            raise UserError(
                f"WarmStart.run = {settings.run!r} has {name} as {_kind(saved[name])} but this "
                f"model has {_kind(own[name])}: correct the model or name it in WarmStart.ignore."
            )
    new = [name for name in own if name not in taken]
    return taken, new, [name for name in saved if name not in taken]


def _is_wanted(name: str, settings: WarmStart) -> bool:
    is_chosen = not settings.only or any(fnmatchcase(name, p) for p in settings.only)
    return is_chosen and not any(fnmatchcase(name, p) for p in settings.ignore)


def _kind(array: Any) -> str:
    return f"{array.dtype} {tuple(array.shape)}"


def _listed(names: Iterable[str]) -> str:
    """The first of some names in a line, and how many more there are."""
    names = list(names)
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
