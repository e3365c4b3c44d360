"""The page on optimizers has the figures of its results, and they are those of the runs."""

from pathlib import Path

from docs.studies.quickstart_optimizers import with_tables

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "results" / "quickstart_optimizers"


def test_the_page_has_the_tables_of_the_results() -> None:
    page = (DOCS / "optimizers.md").read_text()
    assert with_tables(page, RESULTS) == page
