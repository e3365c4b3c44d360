"""Every setting as data and as text."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from hyla_lm.config import settings
from hyla_lm.config.declare import REGISTRY
from hyla_lm.config.settings import Settings

EVERY = settings.settings()


def named(every: list[Settings]) -> set[str]:
    return {f"{one.name}.{field.name}" for one in every for field in one.fields}


def test_the_data_have_every_field_with_type_default_doc_and_choices() -> None:
    found = {one.name: one for one in settings.settings()}
    assert found.keys() == REGISTRY.keys()
    for name, cls in REGISTRY.items():
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        assert found[name].doc == (cls.__doc__ or "").splitlines()[0]
        for field, setting in zip(fields, found[name].fields, strict=True):
            assert (setting.name, setting.default) == (field.name, repr(field.default))
            assert setting.doc == field.metadata["doc"]
            assert {str(c) for c in field.metadata["choices"] or ()} <= setting.choices.keys()
    types = {
        f"{one.name}.{field.name}": field.kind for one in found.values() for field in one.fields
    }
    assert types["ModelConfig.value_dim"] == "int | None"
    assert types["OptimizerConfig.learning_rate"] == "float"


def test_classes_that_only_gin_files_import_are_listed_without_tensorflow() -> None:
    listed = "import sys; from hyla_lm.config.settings import settings; "
    heavy = "('tensorflow', 'seqio', 'sklearn', 'matplotlib', 'apache_beam')"
    code = f"print(*[one.name for one in settings()], *[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", listed + code], capture_output=True, text=True, check=True
    )
    names = set(done.stdout.split())
    assert names == settings.homes().keys()
    assert {"TrainConfig", "SampleCorpus", "FuzzyLogic", "Sraven", "FuzzyLogicSuite"} <= names
    assert {"SeqioTask", "SeqioTasks"} <= names


def test_every_class_of_the_package_has_a_group() -> None:
    assert not [one for one in EVERY if one.module.startswith("hyla_lm.") and not one.room]
    groups = [one.group for one in EVERY]
    assert len(list(dict.fromkeys(groups))) == sum(
        a != b for a, b in zip(["", *groups], groups, strict=False)
    )


@pytest.mark.parametrize(
    ("word", "some", "others"),
    [
        ("ModelConfig", {"ModelConfig.attention", "ModelConfig.remat"}, {"TrainConfig.steps"}),
        ("learning_rate", {"OptimizerConfig.learning_rate"}, {"OptimizerConfig.b1"}),
        ("Rows.train", {"Rows.train"}, {"Rows.validation"}),
        ("ATTENTION", {"ModelConfig.attention"}, {"ModelConfig.remat"}),
        ("heads", {"ModelConfig.num_heads"}, {"OptimizerConfig.b1"}),
        ("gradients", {"TrainConfig.accumulate_steps"}, {"TrainConfig.seed"}),
    ],
)
def test_a_word_finds_classes_and_settings(word: str, some: set[Any], others: set[Any]) -> None:
    found = named(settings.matching(EVERY, [word]))
    assert some <= found and not others & found
