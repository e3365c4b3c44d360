"""Reference pages of the site, written from the code: settings, commands, the API."""

import argparse
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hyla_lm.cli.main import parser as parser_of_all
from hyla_lm.config.settings import Setting, classes, settings_of, summary_of
from hyla_lm.tpu import worker

API = {
    "hyla_lm": ("load", "compare"),
    "hyla_lm.tools.compare.comparison": ("Comparison", "GroupResult", "PairResult"),
    "hyla_lm.attention.attend": ("attend", "make_request", "latent_codes", "AttentionSpec"),
    "hyla_lm.model.inspection": ("attention_layers",),
    "hyla_lm.config.read_experiment": ("read_experiment",),
    "hyla_lm.train": ("train",),
}


def settings() -> str:
    """Every class that gin binds, by room, with its fields."""
    return "\n\n".join(
        f"## hyla_lm.{room}\n\n" + "\n\n".join(map(_class, of))
        for room, of in itertools.groupby(classes(), lambda cls: cls.__module__.split(".")[1])
    )


def _class(cls: type) -> str:
    rows, name = [], cls.__name__
    for field in settings_of(cls):
        kind = _plain(field.kind)
        shown = f"`{field.name}`{{ #{name}.{field.name} }}<br>{kind}"
        rows.append(
            (shown, f"`{field.default}`", "<br>".join([_plain(field.doc), *_choices(field)]))
        )
    table = _table(("Setting", "Default", "Meaning"), rows)
    return f"### {name}\n\n{summary_of(cls)}\n\n{table}"


def _choices(field: Setting) -> list[str]:
    explained = [f"`{name}`: {_plain(text)}" for name, text in field.choices.items() if text]
    return explained or ([f"one of {_codes(field.choices)}"] if field.choices else [])


def commands() -> str:
    """Every command with its flags."""
    parsers = [parser_of_all(is_whole=True), worker._parser()]
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
    is_known = action.default in (None, False, "", [], ()) or "default" in (action.help or "")
    said += [] if is_known or action.nargs == 0 else [f"default `{action.default}`"]
    return "; ".join(said)


def api() -> str:
    """Signatures and docstrings of what other programs call."""
    parts = []
    for module, names in API.items():
        parts.append(f"## {module}")
        for name in names:
            thing = getattr(importlib.import_module(module), name)
            parts.append(f"### {name}\n\n```python\n{_signature(thing)}\n```\n\n{_doc(thing)}")
    return "\n\n".join(parts)


def _signature(thing: Any) -> str:
    """The source up to the docstring; of a dataclass also its fields."""
    source = textwrap.dedent(inspect.getsource(thing))
    head, _, body = source.partition('"""')
    fields = re.findall(r"^    \w+: .*$", body, re.M) if inspect.isclass(thing) else []
    return "\n".join([head.rstrip(), *fields])


def _doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _plain(text: str) -> str:
    """Text of the code that means no Markdown."""
    return re.sub(r"([|*_<\[])", r"\\\1", text)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


REFERENCE: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "api": api,
}
