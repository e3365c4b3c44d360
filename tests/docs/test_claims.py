"""The figures that pages state in words are those of the committed results."""

import re

import pytest

from docs.studies import experiments_page, quickstart_optimizers, records_page
from docs.studies.claims import DOCS, Claim, claims, figure

WRITTEN = ("reproduction.md", "does_hyla_help.md")
NOT_PROSE = re.compile(r"^```.*?^```|^\|.*?$|`[^`]*`|\]\([^)]*\)|A\.1", re.S | re.M)
DECIMAL = re.compile(r"\d+\.\d+")


def words(page: str) -> str:
    return " ".join((DOCS / page).read_text().split())


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim["claim"])
def test_a_stated_figure_is_that_of_the_results(claim: Claim) -> None:
    assert figure(claim) == claim["figure"]
    for page in claim["pages"]:
        assert claim["figure"] in words(page), page


@pytest.mark.parametrize("page", WRITTEN)
def test_each_decimal_of_a_sentence_is_of_a_claim(page: str) -> None:
    stated = {one for c in claims() if page in c["pages"] for one in DECIMAL.findall(c["figure"])}
    assert set(DECIMAL.findall(NOT_PROSE.sub(" ", (DOCS / page).read_text()))) <= stated


def test_pages_and_reports_are_those_of_the_results() -> None:
    choices = (DOCS / "choices.md").read_text()
    optimizers = DOCS / "results" / "quickstart_optimizers"
    assert quickstart_optimizers.with_tables(choices, optimizers) == choices
    assert records_page.PAGE.read_text() == records_page.page(records_page.RESULTS)
    made = experiments_page.FOLDER / "report.md"
    assert made.read_text() == experiments_page.page()
    assert records_page.REPORT.read_text() == records_page.report(records_page.RESULTS)
