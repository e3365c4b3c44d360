"""The table of deliberate faults fits the tree."""

import shlex

from tests.mutations import ROOT, Row, rows


def fits(row: Row) -> bool:
    """Whether the lines are in the file once, and the tests exist."""
    if row.old == row.new or text_of(row.file).count(row.old) != 1:
        return False
    named = [word for word in shlex.split(row.test) if word.startswith("tests/")]
    return bool(named) and all(map(is_there, named))


def is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return f"def {name.partition('[')[0]}" in text_of(file)


def text_of(file: str) -> str:
    return (ROOT / file).read_text() if (ROOT / file).is_file() else ""


def test_rows_name_lines_and_tests_that_are_there() -> None:
    assert [row.promise for row in rows() if not fits(row)] == []
