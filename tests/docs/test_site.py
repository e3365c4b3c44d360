"""The site builds strictly, with no link astray; its reference has every setting and flag."""

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from hyla_lm import ending
from hyla_lm.attention.spec import VARIANTS

ROOT = Path(__file__).parents[2]
CONFIGURABLE = re.compile(r"^@configurable\n@dataclass\(frozen=True\)\nclass (\w+)", re.M)
SETTING = re.compile(r"^    (\w+): .*= setting\(", re.M)
FLAG = re.compile(r'add(?:_argument)?\(\s*"(--\w[\w-]*)"')
FETCHED = re.compile(r'(?:src|srcset)="(?:https?:)?//|<link[^>]+href="(?:https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


def sources(*folders: str) -> str:
    return "\n".join(
        path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
    )


def ids(page: Path) -> set[str]:
    return set(re.findall(r'id="([^"]+)"', page.read_text()))


def test_every_setting_is_in_the_reference(site: Path) -> None:
    found, code = ids(site / "settings" / "index.html"), sources("hyla_lm", "data", "evals")
    pieces = CONFIGURABLE.split(code)
    classes = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    assert {name.lower() for name in classes} <= found
    for name, body in classes.items():
        own = body.partition("\n\n\n")[0]
        assert {f"{name}.{field}" for field in SETTING.findall(own)} <= found


def test_every_flag_is_in_the_reference(site: Path) -> None:
    told = unescape((site / "commands" / "index.html").read_text())
    missing = {flag for flag in FLAG.findall(sources("hyla_lm", "data", "evals", "tpu"))}
    assert {flag for flag in missing if f"<code>{flag}" not in told} == set()


def test_every_variant_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "variants.md").read_text()
    for name, spec in VARIANTS.items():
        assert f"| `{name}` | {spec.normalization} | {spec.value_network}" in page


def test_pages_are_whole(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text()
        assert "<!-- reference:" not in html, page
        assert not FETCHED.search(html), page


def test_each_status_of_a_command_is_on_the_page() -> None:
    page = (ROOT / "docs" / "exit_statuses.md").read_text()
    names = "DONE, FAILED, MISTAKE, UNAVAILABLE, STOPPED, INTERRUPTED, UNREAD"
    statuses = {getattr(ending, name) for name in names.split(", ")}
    assert set(map(int, re.findall(r"^\| (\d+) \|", page, re.M))) == statuses
