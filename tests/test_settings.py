"""Settings: checked fields, every one as data, and what hyla-lm describe shows."""

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from hyla_lm.attention.spec import VARIANTS
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
    name: str = setting("a", "a choice", choices=("a", "b"))
    pair: tuple[int, int] = setting((1, 1), "two ints", minimum=1, maximum=3)
    several: str | tuple[str, ...] = setting("x", "a name or names")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"whole": True}, "Example.whole = True must be int"),
        ({"whole": 0}, "Example.whole = 0 must be at least 1"),
        ({"name": "c"}, "Example.name = 'c' must be one of 'a', 'b'"),
        ({"pair": (1, 4)}, "Example.pair = (1, 4) must be at most 3"),
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


def test_classes_that_only_gin_files_import_are_listed_without_tensorflow() -> None:
    listed = "import sys; from hyla_lm.config.settings import classes; "
    heavy = "('tensorflow', 'seqio', 'sklearn', 'matplotlib')"
    code = f"print(*[c.__name__ for c in classes()], *[m for m in {heavy} if m in sys.modules])"
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
            assert f"  {cls.__name__}.{field.name}: " in text and field.metadata["doc"] in text


def test_a_word_shows_the_settings_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = described(capsys, "learning_rate")
    assert "  OptimizerConfig.learning_rate: float = 0.001\n      peak learning rate" in text
    assert "TrainConfig" not in text
    text = described(capsys, "ATTENTION")
    assert f"      one of {', '.join(VARIANTS)}\n" in text
    assert "OptimizerConfig.b1" not in text
    assert "TrainConfig.accumulate_steps" in described(capsys, "gradients")
