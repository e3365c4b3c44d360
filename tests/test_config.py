"""Configuration: checked fields and documented settings."""

import dataclasses
import inspect
import json
from dataclasses import dataclass
from typing import Any

import pytest

import hyla_lm.evals.suites  # noqa: F401  registers a class that a tuple takes
from hyla_lm.config import declare as config
from hyla_lm.config import gin_files, settings
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
    [
        {"whole": 1},
        {"real": 0},
        {"real": 3},
        {"real": 1e-9},
        {"flag": False},
        {"name": "b"},
        {"maybe": None},
        {"maybe": 2},
        {"several": ("x", "y")},
        {"several": ()},
    ],
    ids=str,
)
def test_fitting_values_pass(fields: dict[str, Any]) -> None:
    check_fields(Example(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"whole": True}, "Example.whole = True must be int"),
        ({"whole": 1.0}, "Example.whole = 1.0 must be int"),
        ({"whole": "1"}, "Example.whole = '1' must be int"),
        ({"whole": None}, "Example.whole = None must be int"),
        ({"whole": 0}, "Example.whole = 0 must be at least 1"),
        ({"real": True}, "Example.real = True must be float"),
        ({"real": "1"}, "Example.real = '1' must be float"),
        ({"real": -1e-9}, "Example.real = -1e-09 must be at least 0"),
        ({"real": float("nan")}, "Example.real = nan must be"),
        ({"flag": 1}, "Example.flag = 1 must be bool"),
        ({"flag": "False"}, "Example.flag = 'False' must be bool"),
        ({"name": "c"}, "Example.name = 'c' must be one of 'a', 'b'"),
        ({"name": 1}, "Example.name = 1 must be str"),
        ({"maybe": 2.0}, "Example.maybe = 2.0 must be int | None"),
        ({"maybe": 1}, "Example.maybe = 1 must be at least 2"),
        ({"several": ["x"]}, "Example.several = ['x'] must be str | tuple[str, ...]"),
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


def registered_fields() -> list[tuple[str, dataclasses.Field[Any]]]:
    return [
        (name, field)
        for name, cls in REGISTRY.items()
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
    ]


def test_all_the_configuration_is_registered() -> None:
    assert {
        "TrainConfig",
        "ModelConfig",
        "OptimizerConfig",
        "MeshConfig",
        "CheckpointConfig",
        "LogConfig",
        "LanguageModel",
        "Rows",
    } <= set(REGISTRY)


def test_every_field_has_a_doc_and_every_class_too() -> None:
    assert all(field.metadata.get("doc") for _, field in registered_fields())
    assert all((inspect.getdoc(cls) or "").endswith(".") for cls in REGISTRY.values())


def test_a_class_called_takes_no_bindings() -> None:
    (bound,) = gin_files.read([], ["ModelConfig.num_layers = 3"], ModelConfig).values
    assert (bound.num_layers, ModelConfig().num_layers) == (3, 6)


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("Rows", ["LanguageModel.data = @Rows()", "RowMixture.rows = (@Rows(),)"]),
        (
            "other/Rows",
            ["LanguageModel.data = @other/Rows()", "RowMixture.rows = (@other/Rows(),)"],
        ),
        ("LanguageModel", ["TrainConfig.task = @LanguageModel()"]),
        ("FuzzyLogicSuite", ["TrainConfig.suites = (@FuzzyLogicSuite(),)"]),
        ("ModelConfig", []),
    ],
)
def test_what_would_use_a_class(name: str, uses: list[str]) -> None:
    assert settings.uses_of(name) == uses


def test_bindings_are_told_from_arguments() -> None:
    argv = ["train", "--gin.A.b=1", "--gin_file=a.gin", "--gin.A.c = '--gin.'"]
    assert config.split_arguments(argv) == (
        ["train", "--gin_file=a.gin"],
        ["A.b=1", "A.c = '--gin.'"],
    )


def test_a_configuration_as_a_dict_is_json_and_complete() -> None:
    model = ModelConfig(attention=("hyla", "softmax"), value_dim=4)
    entries = config.as_dict(model)
    assert json.loads(json.dumps(entries)) == entries
    assert entries.keys() == {"class", *(field.name for field in dataclasses.fields(model))}
    assert entries["attention"] == ["hyla", "softmax"]
    rows = Rows("train", "validation", "model")
    nested = config.as_dict(LanguageModel(data=rows))
    assert nested["data"] == {"class": "Rows", **dataclasses.asdict(rows)}
