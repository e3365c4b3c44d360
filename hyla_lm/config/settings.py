"""Every setting as data, and as text: what `hyla-lm describe` prints and pages of settings show."""

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from hyla_lm.config.declare import REGISTRY, type_name
from hyla_lm.package import source_folders

CONFIGURABLE = re.compile(r"^@configurable\n@dataclass\(frozen=True\)\nclass (\w+)", re.M)


class Setting(NamedTuple):
    """A field that gin binds; `choices` are all its values, or those that have a name.

    `default` is as gin writes it. A choice that has an explanation has it as its value.
    """

    name: str
    kind: str
    default: str
    doc: str
    choices: Mapping[str, str]


def classes() -> list[type]:
    """All classes that gin binds, with those that only gin files import, by module.

    Importing them needs no extra.
    """
    for module in homes().values():
        import_module(module)
    return sorted(REGISTRY.values(), key=lambda cls: cls.__module__)


def homes() -> dict[str, str]:
    """The module of each class of settings in the package; none of them is imported for it."""
    found = {}
    for package, folder in source_folders().items():
        for path in sorted(folder.rglob("*.py")):
            module = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            found.update(dict.fromkeys(CONFIGURABLE.findall(path.read_text("utf-8")), module))
    return found


def settings_of(cls: type) -> list[Setting]:
    """The fields of a class that gin binds."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(typing.cast(Any, cls)):
        about = field.metadata
        choices = dict.fromkeys(map(str, about["choices"] or ()), "") | about["explained"]
        kind = type_name(hints[field.name])
        found.append(Setting(field.name, kind, repr(field.default), about["doc"], choices))
    return found


def text_of(every: Iterable[type], words: Sequence[str] = ()) -> str:
    """The settings with types, defaults and choices, or those with a word in name or meaning."""
    lines = []
    for cls in every:
        own = []
        for one in settings_of(cls):
            searched = f"{cls.__name__}.{one.name} {one.doc}".lower()
            if not words or any(word.lower() in searched for word in words):
                own += [f"  {cls.__name__}.{one.name}: {one.kind} = {one.default}"]
                own += [f"      {one.doc}", *_choice_lines(one.choices)]
        if own:
            lines += [f"{cls.__name__}: {summary_of(cls)}", *own, ""]
    return "\n".join(lines).strip()


def summary_of(cls: type) -> str:
    """The first line of the documentation of a class."""
    return (cls.__doc__ or "").partition("\n")[0]


def _choice_lines(choices: Mapping[str, str]) -> list[str]:
    explained = [f"        {name}: {text}" for name, text in choices.items() if text]
    return explained or ([f"      one of {', '.join(choices)}"] if choices else [])
