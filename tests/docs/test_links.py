"""Links in the documents lead to existing files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = (".", "hyla_lm", "gin", "data", "tpu", "evals", "docs")
DOCUMENTS = sorted(
    path for place in PLACES for path in (ROOT / place).glob("*.md" if place == "." else "**/*.md")
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_links_to_exist(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", document.read_text())
    missing = [t for t in targets if "://" not in t and not (document.parent / t).exists()]
    assert missing == []
