"""Which paragraphs of a docstring count as prose, and how they are re-joined."""

import pytest

from hyla_lm.data.prose import is_prose, paragraphs

NUMPY = """Sum of array elements over
a given axis.

Parameters
----------
axis : int, optional
    Axis along which a sum
    is performed.
dtype : dtype

Returns
-------
ndarray
    An array with the same shape.

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

Returns:
  The sum of both.

Run it so::

  The code is here.

* It is **fast**.
* It has ``{braces}`` in it.

:param third: The third of the numbers.
:rtype: int
.. note:: This is a note.
"""


def test_numpy_docstring() -> None:
    assert paragraphs(NUMPY) == [
        "Sum of array elements over a given axis.",
        "Axis along which a sum is performed.",
        "An array with the same shape.",
    ]


def test_google_and_sphinx_docstrings() -> None:
    assert paragraphs(GOOGLE) == [
        "The first number, which may be negative.",
        "The second number of a.Pair.",
        "The sum of both.",
        "It is fast.",
        "The third of the numbers.",
        "This is a note.",
    ]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("This is a sentence.", True),
        ('He said that it "works."', True),
        ("Is it so?", True),
        ("Too short.", False),
        ("this has no end of a sentence", False),
        ("This trails off and ...", False),
        ("The set {1, 2} is small.", False),
        ("Please enable javascript in the browser.", False),
        ("The lorem ipsum of a page.", False),
        ("x = the + value of it.", False),
        ("In 1 2 3 4 5 6 7 8 9 0 (1) [2] [3].", False),
        ("The lone surrogate \ud800 is not text.", False),
    ],
)
def test_line_rules(text: str, kept: bool) -> None:
    assert is_prose(text) is kept


@pytest.mark.parametrize("docstring", ["", "\n\n", "----", "::", "```", ">>> 1", " - \n - "])
def test_odd_docstrings_hold_no_prose(docstring: str) -> None:
    assert paragraphs(docstring) == []
