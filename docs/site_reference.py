"""Reference pages of the site, written from the code: settings, commands, variants, the API."""

import argparse
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

from hyla_lm import config
from hyla_lm.attention import VARIANTS
from hyla_lm.commands import whole_parser
from hyla_lm.tpu import doctor, gke, worker

# Modules below hyla_lm, and the area of the settings that they hold; the first that fits counts.
AREAS = {
    "experiment": "The run",
    "running": "The run",
    "model": "The model",
    "optim": "Optimizer and updates",
    "update_policy": "Optimizer and updates",
    "parallel": "Devices",
    "tasks": "Language modelling and its data",
    "input": "Language modelling and its data",
    "data": "Language modelling and its data",
    "evals": "Evaluation tasks and suites",
    "": "Other",
}
WITH_SETTINGS = (
    "experiment",
    "data.sample_corpus",
    "data.seqio_documents",
    "evals.suites",
    "evals.tasks.fuzzy_logic",
    "evals.tasks.sraven",
)
NOT_NEEDED = ("seqio", "tensorflow")  # of an extra that the documents do without
API = {
    "hyla_lm": ("load",),
    "hyla_lm.attention": ("attend", "latent_codes", "AttentionSpec"),
    "hyla_lm.model.inspection": ("attention_layers",),
    "hyla_lm.experiment": ("read_experiment",),
    "hyla_lm.trainer": ("train",),
}


def settings() -> str:
    """Every class that gin binds, by area, with its fields."""
    _make_known()
    areas: dict[str, list[str]] = {title: [] for title in AREAS.values()}
    for name, cls in config.REGISTRY.items():
        areas[_area(cls)].append(f"### {name}\n\n{_doc(cls)}\n\n{_fields(name, cls)}")
    return "\n\n".join("\n\n".join([f"## {title}", *of]) for title, of in areas.items() if of)


def _make_known() -> None:
    """Imports what registers classes; what is not needed and not there has a stand-in meanwhile."""
    stand_ins = [name for name in NOT_NEEDED if find_spec(name) is None]
    sys.modules.update({name: MagicMock() for name in stand_ins})
    for module in WITH_SETTINGS:
        importlib.import_module(f"hyla_lm.{module}")
    for name in stand_ins:
        del sys.modules[name]


def _area(cls: type) -> str:
    module = cls.__module__.removeprefix("hyla_lm.") + "."
    return next(title for part, title in AREAS.items() if module.startswith(f"{part}.") or not part)


def _fields(name: str, cls: Any) -> str:
    hints = typing.get_type_hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        known = field.metadata
        limits = [f"one of {_codes(map(repr, known['choices']))}"] if known.get("choices") else []
        limits += [f"at least {known['minimum']}"] if known.get("minimum") is not None else []
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        shown = f"`{field.name}`{{ #{name}.{field.name} }}<br>{_type(hints[field.name])}"
        rows.append((shown, default, "; ".join([_plain(known["doc"]), *limits])))
    return _table(("Setting", "Default", "Meaning"), rows)


def commands() -> str:
    """Every command with its flags."""
    parsers = [whole_parser(), gke._parser(), doctor._parser(), worker._parser()]
    return "\n\n".join(part for parser in parsers for part in _commands_of(parser))


def _commands_of(parser: argparse.ArgumentParser, doc: str | None = None) -> Iterator[str]:
    """A section of a parser's own flags, if it has any, and those of its commands."""
    own = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    groups = [a for a in own if isinstance(a, argparse._SubParsersAction)]
    if rows := [(_flag(action), _meaning(action)) for action in own if action not in groups]:
        said = [f"## {parser.prog}", (parser.description or doc or "").strip()]
        yield "\n\n".join([*said, _table(("Flag", "Meaning"), rows)])
    for group in groups:
        docs = {choice.dest: choice.help for choice in group._choices_actions}
        for name, command in group.choices.items():
            yield from _commands_of(command, docs.get(name))


def _flag(action: argparse.Action) -> str:
    names = action.option_strings or [action.metavar or action.dest]
    has_value = bool(action.option_strings) and action.nargs != 0
    value = f" {action.metavar or action.dest.upper()}" if has_value else ""
    return "<br>".join(f"`{name}{value}`" for name in names)


def _meaning(action: argparse.Action) -> str:
    said = [_plain(action.help or "")] if action.help else []
    said += [f"one of {_codes(map(str, action.choices))}"] if action.choices else []
    said += ["required"] if action.required and action.option_strings else []
    is_told = action.default in (None, False, "", [], ()) or "default" in (action.help or "")
    said += [] if is_told or action.nargs == 0 else [f"default `{action.default}`"]
    return "; ".join(said)


def variants() -> str:
    """The attention variants by name."""
    head = ("Name", "Code", "Value network", "Activation", "Hidden layers")
    rows = []
    for name, spec in VARIANTS.items():
        depth = str(spec.value_depth) if spec.value_network == "hypernetwork" else "none"
        rows.append((f"`{name}`", spec.normalization, spec.value_network, spec.activation, depth))
    return _table(head, rows)


def api() -> str:
    """Signatures and docstrings of what other programs call."""
    parts = []
    for module, names in API.items():
        parts.append(f"## {module}")
        for name in names:
            thing = getattr(importlib.import_module(module), name)
            parts.append(
                f"### {name}\n\n```python\n{_signature(thing)}\n```\n\n{_doc(thing, True)}"
            )
    return "\n\n".join(parts)


def _signature(thing: Any) -> str:
    """The source up to the docstring; of a dataclass also its fields."""
    source = textwrap.dedent(inspect.getsource(thing))
    head, _, body = source.partition('"""')
    fields = re.findall(r"^    \w+: .*$", body, re.M) if inspect.isclass(thing) else []
    return "\n".join([head.rstrip(), *fields])


def _doc(thing: Any, whole: bool = False) -> str:
    doc = inspect.getdoc(thing) or ""
    return doc if whole else doc.partition("\n")[0]


def _type(hint: Any) -> str:
    """A type without its modules."""
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return re.sub(r"\b(?:\w+\.)+", "", text).replace("|", "\\|").replace("[", "\\[")


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _plain(text: str) -> str:
    """Text of the code that means no Markdown."""
    return re.sub(r"([|*_<])", r"\\\1", text)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


REFERENCE: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "variants": variants,
    "api": api,
}
