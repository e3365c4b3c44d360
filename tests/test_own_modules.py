"""A gin file may import a module of the folder where the command starts."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyla_lm.config import gin_files
from hyla_lm.config.declare import REGISTRY
from hyla_lm.config.gin_files import Written
from hyla_lm.errors import UserError

OWN = """
from dataclasses import dataclass
from hyla_lm.config.declare import configurable, setting

@configurable
@dataclass(frozen=True)
class Own:
    "A class of a user."
    text: str = setting("", "a text")
"""


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which Python's path has not, as with a console script."""
    monkeypatch.chdir(tmp_path)
    there = [entry for entry in sys.path if entry and Path(entry) != tmp_path]
    monkeypatch.setattr(sys, "path", there)
    yield tmp_path
    sys.modules.pop("own_module", None)
    REGISTRY.pop("Own", None)


def test_a_module_of_the_current_folder_is_found(outside: Path) -> None:
    (outside / "own_module.py").write_text(OWN)
    (outside / "inner.gin").write_text("import own_module\n")
    (outside / "outer.gin").write_text("include 'inner.gin'\n")
    gin_files.parse(["outer.gin"], ["Own.text=a b"])
    assert REGISTRY["Own"].__module__ == "own_module"
    gin_files.parse([Written("config.gin", "import own_module", is_trusted=True)], ["Own.text=a"])
    assert sys.path.count(str(outside)) == 1 and sys.path[-1] == str(outside)


def test_a_class_whose_module_is_not_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(REGISTRY, "Sraven", raising=False)
    with pytest.raises(UserError, match=r"add a line import hyla_lm\.evals\.tasks\.sraven\.$"):
        gin_files.parse([], ["Sraven.features=3"])
    with pytest.raises(UserError, match=r"did you mean Sraven\?$"):
        gin_files.parse([], ["Srven.features=3"])
