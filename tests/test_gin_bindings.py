"""Bindings of the command line: the type of the field decides what a text without quotes is."""

import shlex
from dataclasses import dataclass
from typing import Any

import gin
import pytest

from hyla_lm.config import declare as config
from hyla_lm.config import gin_files, mistakes
from hyla_lm.config.declare import REGISTRY, configurable, setting
from hyla_lm.config.experiment import TrainConfig  # noqa: F401  makes the classes known
from hyla_lm.errors import UserError
from hyla_lm.input.stream import C4Stream
from hyla_lm.tpu import commands
from hyla_lm.tpu.job import Code, Job, Training


class Inner:
    """What a class setting holds."""


@configurable
@dataclass(frozen=True)
class Kinds:
    """A field of each kind."""

    text: str = setting("", "a string")
    maybe: str | None = setting(None, "an optional string")
    one_or_many: str | tuple[str, ...] = setting("", "a string or strings")
    many: tuple[str, ...] = setting((), "strings")
    whole: int = setting(1, "an int")
    maybe_whole: int | None = setting(None, "an optional int")
    real: float = setting(0.5, "a float")
    flag: bool = setting(False, "a bool")
    numbers: tuple[int, ...] = setting((), "ints")
    inner: Inner | None = setting(None, "a class")
    kind: str = setting("rotary", "a choice", choices=("rotary", "learned"))


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Any:
    """The class here is no setting of the package."""
    yield
    REGISTRY.pop("Kinds")


def read(*bindings: str) -> Kinds:
    try:
        return gin_files.read([], bindings, Kinds).values[0]
    finally:
        assert not gin.config._CONFIG and not gin.config._OPERATIVE_CONFIG


def refusal(*bindings: str) -> str:
    with pytest.raises(UserError) as error:
        read(*bindings)
    sentence = str(error.value)
    assert "\n" not in sentence and sentence.endswith((".", "?")), sentence
    return sentence


@pytest.mark.parametrize(
    ("binding", "value"),
    [
        ("text=softmax", "softmax"),
        ("text=rows/train", "rows/train"),
        ("text=gs://bucket/a-b_c.d/rows", "gs://bucket/a-b_c.d/rows"),
        ("text=~/x", "~/x"),
        ("text=two words", "two words"),
        ("text = spaced ", "spaced"),
        ("text=it's", "it's"),
        ('text=say "it"', 'say "it"'),
        ("text=a=b", "a=b"),
        ("text=a # b", "a # b"),
        ("text=a,b", "a,b"),
        ("text=(a", "(a"),
        ("text=C:\\rows", "C:\\rows"),
        ("text=ünï\tcode", "ünï\tcode"),
        ("text=a\nb", "a\nb"),
        ("text=", ""),
        ("text=123", "123"),
        ("text=007", "007"),
        ("text=1e-3", "1e-3"),
        ("text=-1", "-1"),
        ("text=True", "True"),
        ("text='softmax'", "softmax"),
        ('text="softmax"', "softmax"),
        ('text="a" "b"', "ab"),
        ("maybe=rows", "rows"),
        ("maybe=None", None),
        ("maybe=3", "3"),
        ("one_or_many=hyla", "hyla"),
        ("one_or_many=hyla,softmax", ("hyla", "softmax")),
        ("one_or_many=(hyla, softmax)", ("hyla", "softmax")),
        ("one_or_many=('hyla', softmax)", ("hyla", "softmax")),
        ("one_or_many=('hyla',)", ("hyla",)),
        ("one_or_many=()", ()),
        ("many=a/*.gz,", ("a/*.gz",)),
        ("many=(a/*.gz,)", ("a/*.gz",)),
        ("many=1,2", ("1", "2")),
        ('many=("a",)', ("a",)),
        ("whole=-3", -3),
        ("maybe_whole=None", None),
        ("real=1e-3", 1e-3),
        ("real=2", 2),
        ("flag=true", True),
        ("flag=FALSE", False),
        ("flag=True", True),
        ("numbers=1,2", (1, 2)),
        ("numbers=(1,)", (1,)),
        ("kind=learned", "learned"),
    ],
)
def test_a_text_becomes_what_the_field_takes(binding: str, value: object) -> None:
    found = getattr(read(f"Kinds.{binding}"), binding.partition("=")[0].strip())
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("key", ["scope/Kinds.text", "tests.test_gin_bindings.Kinds.text"])
def test_a_scope_and_a_module_before_the_class_change_nothing(key: str) -> None:
    if "/" in key:
        assert "scope/Kinds" in refusal(f"{key}=a b")
    else:
        name = f"{Kinds.__module__}.Kinds.text"
        assert read(f"{name}=a b").text == "a b"


@pytest.mark.parametrize(
    ("macro", "field", "value"),
    [
        ("ROWS=rows/train", "text", "rows/train"),
        ("ROWS='rows'", "text", "rows"),
        ("ROWS=two words", "text", "two words"),
        ("ROWS=3", "whole", 3),
        ("ROWS=(1, 2)", "numbers", (1, 2)),
        ("ROWS=None", "maybe", None),
    ],
)
def test_a_macro_takes_a_value_of_gin_or_else_a_text(macro: str, field: str, value: Any) -> None:
    assert getattr(read(f"Kinds.{field}=%ROWS", macro), field) == value


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        ("whole=softmax", "Kinds.whole=softmax: softmax is given but int is wanted"),
        ("whole=", "nothing is given but int is wanted"),
        ("whole='3'", "must be int: write 3"),
        ("whole=3.0", "must be int: write 3"),
        ("whole=1e3", "must be int: write 1000"),
        ("real=x", "x is given but float is wanted"),
        ("real='1e-3'", "must be float: write 0.001"),
        ("flag=yes", "yes is given but bool is wanted: write True or False"),
        ("flag='true'", "must be bool: write True"),
        ("flag=1", "must be bool: write True or False"),
        ("maybe_whole=none", "write None"),
        ("many=a/*.gz", "write ('a/*.gz',), with a comma, also for one"),
        ('many=("a")', "write ('a',), with a comma, also for one"),
        ("numbers=3", "write (3,), with a comma, also for one"),
        ("numbers=[1, 2]", "write (1, 2)"),
        ("numbers=1,x", "1,x is given but tuple[int, ...] is wanted"),
        ("inner=Kinds", "Kinds is given but Inner | None is wanted: write @Kinds()"),
        ("inner='Kinds'", "write @Kinds()"),
        ("inner=@Kinds", "Kinds.inner = @Kinds must be Inner | None: write @Kinds(), with ()"),
        ("inner=@Kindes()", "there is no class 'Kindes'; did you mean Kinds?"),
        ("text='open", "text that begins with ' needs quotes that close"),
        ("one_or_many=('a',", "close the parenthesis"),
        ("text", "--gin.Kinds.text has no value: write --gin.Kinds.text=VALUE."),
        ("kind=learnt", "must be one of 'rotary', 'learned'; did you mean learned?"),
        ("txt=a", "Kinds has no setting 'txt'; did you mean Kinds.text?"),
        ("text=%NAME", "%NAME is used but never set: add a line NAME = VALUE"),
    ],
)
def test_what_the_field_does_not_take_is_said(binding: str, said: str) -> None:
    assert said in refusal(f"Kinds.{binding}")


def test_a_misspelt_class_or_macro_is_suggested() -> None:
    assert "did you mean Kinds?" in refusal("kinds.text=a b")
    assert "did you mean %STEPS?" in refusal("Kinds.whole=%STEP", "STEPS=3", "Kinds.real=%STEPS")
    assert "did you mean LENGTH?" in refusal("Kinds.whole=%LENGTH", "LENGHT=3")
    assert "write Kinds.whole = …" in refusal("whole=3")


@pytest.mark.parametrize(
    ("name", "field", "meant"),
    [
        (C4Stream.__name__, "validatio", "C4Stream.validation"),
        ("Rows", "validatio", "Rows.validation"),
        ("TrainConfig", "learning_rate", "OptimizerConfig.learning_rate"),
        ("TrainConfig", "learnin_rate", "OptimizerConfig.learning_rate"),
    ],
)
def test_a_misspelt_field_is_sought_in_its_class_first(name: str, field: str, meant: str) -> None:
    said = mistakes.unknown_field(name, field)
    assert said == f"{name} has no setting {field!r}; did you mean {meant}?"


def test_a_gin_file_stays_gin(tmp_path: Any) -> None:
    path = tmp_path / "a.gin"
    for line, said in {
        "Kinds.text = rows/train": "text needs quotes in a gin file: write Kinds.text = 'ro",
        "Kinds.flag = true": "write Kinds.flag = True",
        "Kinds.text = 'open": "needs quotes that close",
        "Kinds.text 3": "Kinds.text 3 is no line of gin",
        "Kinds.whole = 3 4": "text needs quotes",
        "Kinds.txt = 3": "did you mean Kinds.text?",
        "Kinds.inner = @Kind()": "did you mean Kinds?",
        "SampleCorpuss.cache = 3": "did you mean SampleCorpus?",
    }.items():
        path.write_text(f"# a comment\nKinds.real = 2\n{line}\n")
        with pytest.raises(UserError) as error:
            gin_files.read([str(path)], [], Kinds)
        assert str(error.value).startswith(f"{path}:3: ") and said in str(error.value)
        outer = tmp_path / "outer.gin"
        outer.write_text(f"include '{path}'\n")
        with pytest.raises(UserError) as error:
            gin_files.read([str(outer)], [], Kinds)
        assert str(error.value).startswith(f"{path}:3: ") and said in str(error.value)


@pytest.mark.parametrize("text", ["two words", "~/x", "gs://b/a-b_c.d", "it's", '"a"', "$HOME"])
def test_the_launchers_pass_a_text_as_it_is(text: str) -> None:
    training = Training("gs://b/run", ("a.gin",), (f"Kinds.text={text}",))
    job = Job("a", "p", "z", training=training, code=Code("r", "0" * 40))
    started = shlex.split(commands.start(job))
    assert f"--gin.Kinds.text={text}" in started
    *_, binding = config.split_arguments(started)[1]
    assert read(binding).text == text.strip('"')
