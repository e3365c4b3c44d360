"""Damaged metrics.jsonl and summary.json give the lines, or one sentence that names the place."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyla_lm.errors import UserError
from hyla_lm.run.folder import RunFolder, parse_lines

NAME = "runs/a/metrics.jsonl"
STEP = st.integers(0, 2**40)
TAGS = st.dictionaries(st.text(max_size=9), st.floats() | st.integers(-9, 9), max_size=3)
LINES = st.lists(st.builds(lambda tags, step: {**tags, "step": step}, TAGS, STEP), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
# Objects too deep for Python, numbers too long for it, and bytes that other encodings would take.
STRANGE = {
    "deep list": b"[" * 100_000,
    "step of 5,000 digits": b'{"step": ' + b"9" * 5_000 + b"}",
    "value of 400 digits": b'{"step": 1, "x": ' + b"9" * 400 + b"}",
    "byte order mark": b'\xef\xbb\xbf{"step": 1}',
    "empty": b"",
}
NO_LINES = ([], {"x": 1.0}, {"step": True}, {"step": -1}, {"step": 1, "x": "2"})
DAMAGES = STRANGE | {json.dumps(value): json.dumps(value).encode() for value in NO_LINES}


def text(lines: list[Any]) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def is_same(found: Any, expected: Any) -> bool:
    """NaN is not equal to itself, its text is."""
    return json.dumps(found) == json.dumps(expected)


def assert_names(error: UserError, place: str) -> None:
    message = str(error)
    assert message.startswith(f"{place} is damaged (")
    assert "\n" not in message and message.count(". ") == 0 and len(message) < 200


@given(LINES, st.data())
def test_a_file_cut_anywhere_loses_only_the_line_it_is_cut_in(
    lines: list[dict[str, Any]], data: st.DataObject
) -> None:
    content = text(lines)
    cut = data.draw(st.integers(0, len(content)))
    assert is_same(parse_lines(content[:cut]), lines[: content[:cut].count(b"\n")])


@pytest.mark.parametrize("name", DAMAGES)
def test_a_line_that_is_none_is_named(name: str) -> None:
    content = b'{"step": 1}\n{"step": 2}\n' + DAMAGES[name] + b'\n{"step": 3}\n'
    with pytest.raises(UserError) as raised:
        parse_lines(content, NAME)
    assert_names(raised.value, f"{NAME} line 3")


@given(content=st.binary(max_size=60) | JSON.map(lambda value: text([value])))
def test_a_summary_is_an_object_or_one_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = RunFolder(str(tmp_path_factory.getbasetemp() / "summaries"))
    path = Path(folder.path) / "summary.json"
    path.write_bytes(content)
    try:
        assert isinstance(folder.read_summary(), dict)
    except UserError as error:
        assert_names(error, str(path))
