"""Bindings of the command line: the type of the field decides what a text without quotes is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.config import gin_files
from hyla_lm.config.declare import REGISTRY, configurable, setting
from hyla_lm.config.experiment import TrainConfig  # noqa: F401  makes the classes known
from hyla_lm.errors import UserError


@configurable
@dataclass(frozen=True)
class Kinds:
    """A field of each kind."""

    text: str = setting("", "a string")
    one_or_many: str | tuple[str, ...] = setting("", "a string or strings")
    many: tuple[str, ...] = setting((), "strings")
    whole: int = setting(1, "an int")
    maybe_whole: int | None = setting(None, "an optional int")
    flag: bool = setting(False, "a bool")
    numbers: tuple[int, ...] = setting((), "ints")


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Any:
    """The class here is no setting of the package."""
    yield
    REGISTRY.pop("Kinds")


def read(*bindings: str) -> Kinds:
    (kinds,), _ = gin_files.read([], bindings, Kinds)
    return kinds


def refusal(*bindings: str) -> str:
    with pytest.raises(UserError) as error:
        read(*bindings)
    sentence = str(error.value)
    assert "\n" not in sentence and sentence.endswith((".", "?")), sentence
    return sentence


@pytest.mark.parametrize(
    ("binding", "value"),
    [
        ("text = two words ", "two words"),
        ("text=it's a=b # c", "it's a=b # c"),
        ("text=a,b", "a,b"),
        ("text=(a", "(a"),
        ("text=C:\\ünï\tcode\n", "C:\\ünï\tcode"),
        ("text=", ""),
        ("text=007", "007"),
        ("text=True", "True"),
        ('text="softmax"', "softmax"),
        ("one_or_many=hyla", "hyla"),
        ("one_or_many=('hyla', softmax)", ("hyla", "softmax")),
        ("one_or_many=()", ()),
        ("many=(a/*.gz,)", ("a/*.gz",)),
        ("many=a/*.gz", ("a/*.gz",)),
        ("many=1,2", ("1", "2")),
        ("maybe_whole=none", None),
        ("flag=FALSE", False),
        ("numbers=1,2", (1, 2)),
        ("numbers=3", (3,)),
    ],
)
def test_a_text_becomes_what_the_field_takes(binding: str, value: object) -> None:
    found = getattr(read(f"{Kinds.__module__}.Kinds.{binding}"), binding.partition("=")[0].strip())
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("macro", "field", "value"),
    [("ROWS=a,b", "text", "a,b"), ("ROWS=(1, 2)", "numbers", (1, 2))],
)
def test_a_macro_takes_a_value_of_gin_or_else_a_text(macro: str, field: str, value: Any) -> None:
    assert getattr(read(f"Kinds.{field}=%ROWS", macro), field) == value


def test_a_macro_that_nothing_uses_or_sets_is_refused() -> None:
    assert "%STEP is used but never set" in refusal("Kinds.whole=%STEP")
    assert "LENGHT = … sets a macro that nothing uses: write" in refusal("LENGHT=3")
    assert "write Kinds.whole = …" in refusal("whole=3")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Kinds.text = rows/train", "Kinds.text = rows/train is no line of gin: write Class.field"),
        ("Kinds.many = ('a')", "write ('a',), with a comma, also for one"),
        ("Kinds.txt = 3", "did you mean Kinds.text?"),
    ],
)
def test_a_mistake_in_a_gin_file_has_its_line(tmp_path: Path, line: str, said: str) -> None:
    path, outer = tmp_path / "a.gin", tmp_path / "outer.gin"
    path.write_text(f"# a comment\nKinds.whole = 2\n{line}\n")
    outer.write_text(f"include '{path}'\n")
    with pytest.raises(UserError) as error:
        gin_files.read([str(outer)], [], Kinds)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{path}:3: ") or "('a')" in line
