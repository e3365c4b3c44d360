"""A damaged metrics.jsonl gives its lines, or one sentence that names the place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyla_lm.errors import UserError
from hyla_lm.run.folder import parse_lines

NAME = "runs/a/metrics.jsonl"
STEP = st.integers(0, 2**40)
TAGS = st.dictionaries(st.text(max_size=9), st.floats() | st.integers(-9, 9), max_size=3)
LINES = st.lists(st.builds(lambda tags, step: {**tags, "step": step}, TAGS, STEP), max_size=6)
# Objects too deep for Python, numbers too long for it, and bytes that other encodings would take.
DAMAGES = {
    "deep list": b"[" * 100_000,
    "step of 5,000 digits": b'{"step": ' + b"9" * 5_000 + b"}",
    "byte order mark": b'\xef\xbb\xbf{"step": 1}',
    "empty": b"",
    "no object": b"[]",
    "no step": b'{"x": 1.0}',
}


def text(lines: list[Any]) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def is_same(found: Any, expected: Any) -> bool:
    """NaN is not equal to itself, its text is."""
    return json.dumps(found) == json.dumps(expected)


@given(LINES, st.data())
def test_a_file_cut_anywhere_loses_only_the_line_it_is_cut_in(
    lines: list[dict[str, Any]], data: st.DataObject
) -> None:
    content = text(lines)
    cut, size = data.draw(st.integers(0, len(content))), data.draw(st.integers(1, 40))
    pieces = [content[begin : min(begin + size, cut)] for begin in range(0, cut, size)]
    assert is_same(list(parse_lines(pieces)), lines[: content[:cut].count(b"\n")])


@pytest.mark.parametrize("name", DAMAGES)
def test_a_line_that_is_none_is_named(name: str) -> None:
    content = b'{"step": 1}\n{"step": 2}\n' + DAMAGES[name] + b'\n{"step": 3}\n'
    with pytest.raises(UserError, match=f"{NAME} line 3 is damaged: "):
        list(parse_lines([content], NAME))
