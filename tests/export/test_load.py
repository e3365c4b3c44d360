"""hyla_lm.load: a run in Python gives text, logits and latent codes, or a sentence."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import hyla_lm
from hyla_lm.errors import UserError
from hyla_lm.export.folder import write_folder
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.run.restored import open_run
from tests.export.conftest import STEPS, TEXT, make_model
from tests.model.small_model import TOLERANCE


@pytest.fixture(scope="module")
def loaded(trained_run: str) -> LoadedModel:
    return hyla_lm.load(trained_run)


def test_a_run_gives_its_newest_checkpoint_or_that_of_a_step(
    trained_run: str, loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = hyla_lm.load(trained_run, step=2)
    assert not caplog.records
    assert f"{earlier}" == "LoadedModel(hyla, 7,216 parameters, step 2)"
    assert (loaded.step, earlier.step) == (STEPS, 2)
    assert (loaded.logits(TEXT) != earlier.logits(TEXT)).any()
    with pytest.raises(UserError, match=r"no checkpoint of step 3 \(it has 2, 4\)"):
        hyla_lm.load(trained_run, step=3)


def test_a_run_of_many_devices_is_opened_on_one(
    trained_run: str, loaded: LoadedModel, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    with (run / "config.gin").open("a") as config:
        config.write("\nMeshConfig.fsdp = 4\n")
    np.testing.assert_array_equal(hyla_lm.load(run).logits(TEXT), loaded.logits(TEXT))


def test_latent_codes_of_softmax_are_its_weights_and_of_hyla_have_the_norm_of_its_heads(
    small_model: LoadedModel,
) -> None:
    codes = small_model.latent_codes(TEXT)
    length, heads = len(small_model.ids(TEXT)), small_model.config.num_heads
    assert list(codes) == [0, 1]
    for code in codes.values():
        assert code.shape == (heads, length, length)
        assert (code[:, ~np.tri(length, dtype=bool)] == 0).all()
    seen = np.tri(length, dtype=bool)
    np.testing.assert_allclose(codes[1].sum(-1), 1, atol=TOLERANCE)
    np.testing.assert_allclose(np.square(codes[0]).mean(0)[seen], 1, atol=1e-2)
    [(layer, code)] = small_model.latent_codes(TEXT, layers=[1]).items()
    assert layer == 1
    np.testing.assert_allclose(code, codes[1], atol=TOLERANCE)
    with pytest.raises(UserError, match="layers names 2 but the layers are 0 to 1"):
        small_model.latent_codes(TEXT, layers=[0, 2])


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([], "at least one integer"),
        ([1, 320], "from 0 to 319"),
        ([1] * 6, r"6 ids exceed ModelConfig\.max_length = 5"),
    ],
    ids=str,
)
def test_ids_that_the_model_does_not_take_are_refused(
    tokenizer: Tokenizer, ids: Any, sentence: str
) -> None:
    model = make_model(tokenizer, positions="learned", max_length=5, num_layers=1)
    with pytest.raises(UserError, match=sentence):
        model.logits(ids)


def test_a_run_of_another_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = SimpleNamespace(train=SimpleNamespace(task=object()))
    monkeypatch.setattr("hyla_lm.export.load.experiment_of", lambda *_: experiment)
    with pytest.raises(UserError, match="holds no language model"):
        hyla_lm.load("runs/fuzzy")


def test_a_model_without_numbers_is_refused_by_whatever_uses_it(
    small_model: LoadedModel, trained_run: str, tmp_path: Path
) -> None:
    def damaged(model: Any) -> Any:
        return replace(model, params=jax.tree.map(lambda leaf: leaf * np.nan, model.params))

    model, run = damaged(small_model), damaged(open_run(trained_run))
    uses = [lambda: model.generate("ba"), lambda: model.score(TEXT), run.evaluation]
    for use in (*uses, lambda: write_folder(model, str(tmp_path / "out"))):
        with pytest.raises(UserError, match="no number.*: take another step"):
            use()
    assert not (tmp_path / "out").exists()
