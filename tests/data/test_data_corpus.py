"""Prose of docstrings: which paragraphs count, how they are re-joined, and corpora on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.data.prose import is_prose, paragraphs
from hyla_lm.data.sample_corpus import collect

SENTENCES = [f"This is sentence number {n}, and it is long enough." for n in "abcdef"]
NUMPY = """Sum of array elements over
a given axis.

Parameters
----------
axis : int, optional
    Axis along which a sum
    is performed.

Examples
--------
>>> add([1, 2])
This is output of the example.

=====  =====
Name   Is the value.
=====  =====
"""
GOOGLE = """Adds the numbers:

Args:
  first: The first number, which
    may be negative.
  second (int): The `second` number of :class:`~a.Pair`.

Run it so::

  The code is here.

* It is **fast**.
* It has ``{braces}`` in it.

:param third: The third of the numbers.
:rtype: int
.. note:: This is a note.
"""


def test_docstrings_of_all_styles() -> None:
    assert paragraphs(NUMPY) == [
        "Sum of array elements over a given axis.",
        "Axis along which a sum is performed.",
    ]
    assert paragraphs(GOOGLE) == [
        "The first number, which may be negative.",
        "The second number of a.Pair.",
        "It is fast.",
        "The third of the numbers.",
        "This is a note.",
    ]


KEPT = ("This is a sentence.", 'He said that it "works."', "Is it so?")
LEFT_OUT = (
    *("Too short.", "this has no end of a sentence", "This trails off and ..."),
    *("The set {1, 2} is small.", "Please enable javascript in the browser."),
    *("In 1 2 3 4 5 6 7 8 9 0 (1) [2] [3].", "The lone surrogate \ud800 is not text."),
)


def test_line_rules() -> None:
    assert all(map(is_prose, KEPT)) and not any(map(is_prose, LEFT_OUT))
    for docstring in ("", "----", "::", "```", ">>> 1", " - \n - "):
        assert paragraphs(docstring) == []


def module(*paragraphs: str) -> str:
    return '"""' + "\n\n".join(paragraphs) + '"""\n'


def test_parses_without_importing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    code = f"open({str(touched)!r}, 'w')\nraise SystemExit\n"
    (tmp_path / "effect.py").write_text(module(*SENTENCES) + code)
    assert [doc.url for doc in collect([tmp_path])] == ["python://effect.py"]
    assert not touched.exists()


def test_repeats_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(module(*SENTENCES[:4], SENTENCES[0]))
    (tmp_path / "b.py").write_text(module(*SENTENCES[:4]))
    (tmp_path / "c.py").write_text(module(*SENTENCES))
    (tmp_path / "d.py").write_text(module(SENTENCES[5], *(s + " Yes." for s in SENTENCES)))
    documents = collect([tmp_path])
    assert [doc.url[-4:] for doc in documents] == ["a.py", "d.py"]
    assert documents[0].text == "\n".join(SENTENCES[:4])
    assert SENTENCES[5] not in documents[1].text.split("\n")


def test_unreadable_files_and_tests_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("def")
    (tmp_path / "null.py").write_bytes(b"a\0b")
    (tmp_path / "coding.py").write_bytes(b'"""\xff\xfe"""')
    (tmp_path / "deep.py").write_text("-" * 100_000 + "1")
    (tmp_path / "empty.py").write_text("")
    for folder in ("tests", "_vendor", "idle_test"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(module(*SENTENCES))
    documents = collect([tmp_path])
    assert documents == []


def test_workers_read_what_one_process_reads(
    python_root: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = python_root(40)
    alone = collect([root])
    monkeypatch.setattr("hyla_lm.data.sample_corpus.SERIAL_BELOW", 0)
    assert collect([root]) == alone
    assert len(alone) == 40
