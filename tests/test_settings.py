"""Settings: checked fields, every one as data, and what hyla-lm describe shows."""

import dataclasses
import inspect
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.attention.attend import VARIANTS
from hyla_lm.cli.main import main
from hyla_lm.config import declare, settings
from hyla_lm.config.declare import REGISTRY, check_fields, setting
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.model.config import ModelConfig
from hyla_lm.tasks.language_model import LanguageModel


@dataclass(frozen=True)
class Example:
    """A field of each kind."""

    whole: int = setting(1, "an int", minimum=1)
    real: float = setting(0.5, "a float", minimum=0)
    flag: bool = setting(True, "a bool")
    name: str = setting("a", "a choice", choices=("a", "b"))
    maybe: int | None = setting(None, "an optional int", minimum=2)
    several: str | tuple[str, ...] = setting("x", "a name or names")


@pytest.mark.parametrize(
    "fields",
    [{"whole": 1}, {"real": 0}, {"name": "b"}, {"maybe": 2}, {"several": ("x",)}, {"several": ()}],
    ids=str,
)
def test_fitting_values_pass(fields: dict[str, Any]) -> None:
    check_fields(Example(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"whole": True}, "Example.whole = True must be int"),
        ({"whole": 1.0}, "Example.whole = 1.0 must be int"),
        ({"whole": 0}, "Example.whole = 0 must be at least 1"),
        ({"real": True}, "Example.real = True must be float"),
        ({"real": -1e-9}, "Example.real = -1e-09 must be at least 0"),
        ({"real": float("nan")}, "Example.real = nan must be"),
        ({"flag": 1}, "Example.flag = 1 must be bool"),
        ({"name": "c"}, "Example.name = 'c' must be one of 'a', 'b'"),
        ({"maybe": 1}, "Example.maybe = 1 must be at least 2"),
        ({"several": ("x", 1)}, "Example.several = ('x', 1) must be str | tuple[str, ...]"),
    ],
    ids=str,
)
def test_unfit_values_name_binding_value_and_what_it_must_be(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        check_fields(Example(**fields))
    assert str(error.value).startswith(message)


def test_a_configuration_as_a_dict_is_json_and_complete() -> None:
    model = ModelConfig(attention=("hyla", "softmax"), value_dim=4)
    entries = declare.as_dict(model)
    assert json.loads(json.dumps(entries)) == entries
    assert entries.keys() == {"class", *(field.name for field in dataclasses.fields(model))}
    assert entries["attention"] == ["hyla", "softmax"]
    rows = Rows("train", "validation", "model")
    nested = declare.as_dict(LanguageModel(data=rows))
    assert nested["data"] == {"class": "Rows", **dataclasses.asdict(rows)}


def test_the_data_have_every_field_with_doc_default_and_choices() -> None:
    found = {one.name: one for one in settings.settings()}
    assert found.keys() == REGISTRY.keys()
    for name, cls in REGISTRY.items():
        assert (inspect.getdoc(cls) or "").endswith(".")
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        for field, one in zip(fields, found[name].fields, strict=True):
            assert (one.name, one.default) == (field.name, repr(field.default))
            assert one.doc == field.metadata["doc"] != ""
            assert {str(c) for c in field.metadata["choices"] or ()} <= one.choices.keys()


def test_classes_that_only_gin_files_import_are_listed_without_tensorflow() -> None:
    listed = "import sys; from hyla_lm.config.settings import settings; "
    heavy = "('tensorflow', 'seqio', 'sklearn', 'matplotlib')"
    code = f"print(*[one.name for one in settings()], *[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", listed + code], capture_output=True, text=True, check=True
    )
    names = set(done.stdout.split())
    assert names == settings.homes().keys() and {"TrainConfig", "SeqioTask", "Sraven"} <= names


def described(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["describe", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_without_a_word_all_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    text = described(capsys)
    for cls in REGISTRY.values():
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            assert f"  {cls.__name__}.{field.name}: " in text


def test_a_word_shows_the_settings_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = described(capsys, "learning_rate")
    assert "  OptimizerConfig.learning_rate: float = 0.001\n      peak learning rate" in text
    assert "TrainConfig" not in text
    text = described(capsys, "ATTENTION")
    assert all(f"        {name}: {spec.explained()}\n" in text for name, spec in VARIANTS.items())
    assert "OptimizerConfig.b1" not in text
    assert "TrainConfig.accumulate_steps" in described(capsys, "gradients")


def test_a_file_shows_which_line_sets_what(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    base, mine = tmp_path / "base.gin", tmp_path / "mine.gin"
    base.write_text("LENGTH = 16\nLanguageModel.sequence_length = %LENGTH\n")
    mine.write_text(
        f"include '{base}'\nimport hyla_lm.evals.suites\nLENGTH = 8\nshort/Rows.train = 'a'\n"
    )
    assert described(capsys, str(mine)).splitlines() == [
        str(mine),
        f"  LENGTH = 8  # {mine}:3",
        f"  LanguageModel.sequence_length = %LENGTH  # {base}:2",
        f"  short/Rows.train = 'a'  # {mine}:4",
    ]
