"""Prose of docstrings: re-joins wrapped paragraphs, then chooses them by C4's line rules."""

import ast
import gc
import re
import warnings
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from hyla_lm.signals import end_with_parent

BLOCKS = ("body", "handlers", "orelse", "finalbody")  # of statements, in source order
MIN_WORDS = 3
MIN_LETTER_SHARE = 0.9
PUNCTUATION = " .,'?!\"-"

FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
BLANK = re.compile(r"\n\s*\n")
CODE = re.compile(r"\s*(?:>>>|\.\.\. |\$ |#|In \[|Traceback|\.\. \[)")
LITERAL = re.compile(r"\s*\.\. (?:code|code-block|sourcecode|testcode|plot|math|doctest)::")
RULE = re.compile(r"\s*[-=~^*+#|\"_]{3}[-=~^*+#|\"_\s]*$")
HEADER = re.compile(r"[\w.*, \\]+ : \S|\S+(?: \S+)?$|.*:$")
ITEM = re.compile(
    r"(?:[-*+•]|\(?(?:\d{1,2}|[a-z])[.)]|:[^:`]+:|\.\. [\w:-]+::|@\w+(?: \w+:)?"
    r"|`{0,2}\*{0,2}\w+`{0,2}(?: ?\([^()]*\))?:)\s+(?=\S)"
)
MARKUP = (
    (re.compile(r":[\w:+.-]+:`~?!?\.?([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),
    (re.compile(r"``?([^`]*)``?_?"), r"\1"),
    (re.compile(r"\*\*(\S[^*]*\S|\S)\*\*"), r"\1"),
    (re.compile(r"(?<!\w)\*(\w[^*]*\w|\w)\*(?!\w)"), r"\1"),
    (re.compile(r"\s*\[(?:\d+|\w+\d+)\]_"), ""),
)
TERMINAL = re.compile(r"(?<!\.\.)[.!?][\"')]?$")
COMMON = re.compile(r"\b(?:the|an?|to|of|and|is|are|be|for|in|with|that|this|it|or|not|if)\b", re.I)
BANNED = re.compile(r"[{}<>|\\=]|%\(| : |lorem ipsum|javascript", re.I)


def begin_worker() -> None:
    """Begins a process that reads files; it imports no more than this module."""
    end_with_parent()
    gc.disable()


def read_prose(path: str) -> list[str]:
    """The prose paragraphs of one Python file, in source order; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(Path(path).read_bytes())
        return [text for docstring in _docstrings(tree) for text in paragraphs(docstring)]
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return []


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node) or ""
    for block in BLOCKS:
        for child in getattr(node, block, ()):
            yield from _docstrings(child)


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs of a docstring that read as English prose, each on one line."""
    plain = (_plain(segment) for block in _blocks(docstring) for segment in _segments(block))
    return [text for text in plain if is_prose(text)]


def is_prose(text: str) -> bool:
    """Whether a paragraph has C4's shape: words, a sentence's end, and no code."""
    return (
        len(text.split()) >= MIN_WORDS
        and TERMINAL.search(text) is not None
        and BANNED.search(text) is None
        and COMMON.search(text) is not None
        and (text[0].isalnum() or text[0] in "\"'")
        and text.isprintable()
        and _letters_and_punctuation(text) >= MIN_LETTER_SHARE * len(text)
    )


def _letters_and_punctuation(text: str) -> int:
    return sum(map(str.isalpha, text)) + sum(map(text.count, PUNCTUATION))


def _blocks(docstring: str) -> Iterator[list[str]]:
    """Runs of lines between blank lines, without literal blocks, fences and doctests."""
    literal: int | None = None
    for block in BLANK.split(FENCE.sub("", docstring.expandtabs())):
        lines = [line for line in block.splitlines() if line.strip()]
        if not lines or (literal is not None and _indent(lines[0]) > literal):
            continue
        opens_literal = lines[-1].rstrip().endswith("::") or LITERAL.match(lines[0])
        literal = _indent(lines[0]) if opens_literal else None
        if not LITERAL.match(lines[0]):
            yield list(takewhile(lambda line: not CODE.match(line), lines))


def _segments(lines: list[str]) -> Iterator[str]:
    """Re-joins wrapped lines; drops headings; starts anew at items and changes of indentation."""
    segment: list[str] = []
    for line in lines:
        if RULE.match(line):
            segment = []
        elif segment and _starts_anew(segment, line):
            yield " ".join(segment)
            segment = [line]
        else:
            segment.append(line)
    yield " ".join(segment)


def _starts_anew(segment: list[str], line: str) -> bool:
    step = _indent(line) - _indent(segment[-1])
    is_header = len(segment) == 1 and HEADER.match(segment[0].strip()) is not None
    return step < 0 or (step > 0 and is_header) or ITEM.match(line.strip()) is not None


def _plain(segment: str) -> str:
    """One line without markup and without the marker of a list item or a field."""
    text = " ".join(segment.split())
    marker = ITEM.match(text)
    if marker is not None and not text[0].isupper():
        text = text[marker.end() :]
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    return text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
