"""Parameters of another run: which are taken by name, which are new, which are left out."""

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax

from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.config.experiment import WarmStart
from hyla_lm.errors import UserError
from hyla_lm.parallel.mesh import path_of

NAMES_SHOWN = 6


class Match(NamedTuple):
    """Names of parameters, each once: taken, in this model alone, and in the other run alone.

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
            f"{listed(saved)} and this model {listed(own)}."
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


def take(checkpoints: Checkpointer, step: int, meta: Any, params: Any, found: Match) -> Any:
    """The parameters with those taken from a checkpoint, laid over devices as they were."""

    def wanted(path: Any, leaf: jax.Array) -> jax.ShapeDtypeStruct | None:
        if path_of(path) not in found.taken:
            return None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)

    shapes = _without_none(jax.tree_util.tree_map_with_path(wanted, params))
    taken = by_name(checkpoints.restore_parameters(step, shapes, meta))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: taken.get(path_of(path), leaf), params
    )


def by_name(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths."""
    return {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def told(found: Match, own: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the start-up summary on what was taken."""
    numbers = sum(math.prod(own[name].shape) for name in found.taken)
    new = [f"{name} {own[name].shape}" for name in found.new]
    return {
        "taken": f"{len(found.taken)} of {len(own)} arrays, {numbers:,} parameters",
        "new": listed(new) or "none",
        "left out": listed(found.left_out) or "none",
    }


def listed(names: Iterable[str]) -> str:
    """The first of some names in a line, and how many more there are."""
    names = list(names)
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_wanted(name: str, settings: WarmStart) -> bool:
    is_asked = not settings.only or any(fnmatchcase(name, p) for p in settings.only)
    return is_asked and not any(fnmatchcase(name, p) for p in settings.ignore)


def _kind(array: Any) -> str:
    return f"{array.dtype} {tuple(array.shape)}"


def _without_none(tree: Any) -> Any:
    """A tree of dicts without the branches that hold None alone."""
    if not isinstance(tree, dict):
        return tree
    kept = {name: _without_none(part) for name, part in tree.items()}
    return {name: part for name, part in kept.items() if part is not None} or None
