"""Hooks of mkdocs: pages that lie beside the code join the site, and reference pages are filled."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_reference import REFERENCE

ROOT = Path(__file__).parents[1]
BESIDE_CODE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "data/README.md",
    "evals/README.md",
    "tpu/README.md",
    "hyla_lm/attention/README.md",
    "hyla_lm/attention/hyla/README.md",
    "hyla_lm/attention/linear/README.md",
    "hyla_lm/attention/softmax/README.md",
)
IN_SITE = {path: path.removeprefix("hyla_lm/") for path in BESIDE_CODE}
IN_REPOSITORY = {name: path for path, name in IN_SITE.items()}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
FILLED = re.compile(r"<!-- reference: (\w+) -->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie beside the code."""
    for path, name in IN_SITE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills the marked places of a page, and points its links to where their targets are here."""
    name = page.file.src_uri
    folder = posixpath.dirname(IN_REPOSITORY.get(name, f"docs/{name}"))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        target = IN_SITE.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(name) or ".")

    return FILLED.sub(lambda mark: REFERENCE[mark[1]](), LINK.sub(moved, markdown))
