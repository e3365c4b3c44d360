"""Every setting as data, and as text: what `hyla-lm describe` prints and pages of settings show."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
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


class Settings(NamedTuple):
    """A class that gin binds; a gin file that names it imports `module`, if nothing else does."""

    name: str
    doc: str
    module: str
    fields: tuple[Setting, ...]


def settings() -> list[Settings]:
    """All classes of the package, with those that only gin files import, by module.

    Importing them needs no extra.
    """
    for module in homes().values():
        import_module(module)
    return sorted(map(_settings_of, REGISTRY.values()), key=lambda one: one.module)


def homes() -> dict[str, str]:
    """The module of each class of settings in the package; none of them is imported for it."""
    found = {}
    for package, folder in source_folders().items():
        for path in sorted(folder.rglob("*.py")):
            module = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            found.update(dict.fromkeys(CONFIGURABLE.findall(path.read_text("utf-8")), module))
    return found


def matching(every: Sequence[Settings], words: Sequence[str]) -> list[Settings]:
    """The classes with the fields whose names or documentation hold one of the words."""
    found = []
    for one in every:
        fields = tuple(
            field
            for field in one.fields
            if any(word.lower() in f"{one.name}.{field.name} {field.doc}".lower() for word in words)
        )
        found += [one._replace(fields=fields)] if fields else []
    return found


def importing_fields(name: str) -> dict[str, Any]:
    """The fields of a registered class that name modules to import, with their defaults."""
    fields = dataclasses.fields(typing.cast(Any, REGISTRY[name])) if name in REGISTRY else ()
    return {field.name: field.default for field in fields if field.metadata.get("imports")}


def text_of(every: Sequence[Settings]) -> str:
    """The settings with their types, defaults and choices."""
    lines = []
    for one in every:
        lines.append(f"{one.name}: {one.doc}")
        for field in one.fields:
            lines += [f"  {one.name}.{field.name}: {field.kind} = {field.default}"]
            lines += [f"      {field.doc}", *_choice_lines(field.choices)]
        lines.append("")
    return "\n".join(lines).strip()


def _choice_lines(choices: Mapping[str, str]) -> list[str]:
    explained = [f"        {name}: {text}" for name, text in choices.items() if text]
    return explained or ([f"      one of {', '.join(choices)}"] if choices else [])


def _settings_of(cls: type) -> Settings:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(typing.cast(Any, cls))
    doc = (inspect.getdoc(cls) or "").partition("\n")[0]
    settings = tuple(_setting_of(field, hints[field.name]) for field in fields)
    return Settings(cls.__name__, doc, cls.__module__, settings)


def _setting_of(field: dataclasses.Field[Any], hint: Any) -> Setting:
    about = field.metadata
    choices = {str(choice): "" for choice in about.get("choices") or ()}
    choices.update(about.get("explained") or {})
    return Setting(field.name, type_name(hint), repr(field.default), about.get("doc", ""), choices)
