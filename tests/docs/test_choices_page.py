"""The page on choices has the figures of the optimizers' runs."""

from pathlib import Path

from docs.studies.quickstart_optimizers import with_tables

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_tables_of_the_results() -> None:
    page = (DOCS / "choices.md").read_text()
    assert with_tables(page, DOCS / "results" / "quickstart_optimizers") == page
