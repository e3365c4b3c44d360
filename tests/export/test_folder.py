"""An exported folder holds the model to the last bit, or a sentence says why there is none."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import hyla_lm
from hyla_lm.cli.main import main
from hyla_lm.errors import UserError
from hyla_lm.export import description
from hyla_lm.export import folder as folders
from hyla_lm.export.folder import write_folder
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import ModelConfig
from hyla_lm.parallel.sharding import path_of
from tests.export.conftest import STEPS, TEXT, make_model

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "modeling_hyla.py",
    "tokenizer.model",
    "tokenizer_config.json",
    "transformers_hyla.py",
}


def leaves(params: Any) -> dict[str, np.ndarray]:
    found = jax.tree_util.tree_leaves_with_path(params)
    return {path_of(path): np.asarray(leaf) for path, leaf in found}


def assert_same_bits(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].shape == array.shape, name
        assert actual[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize(
    "fields",
    [
        {"attention": "hyla_deep", "value_dim": 3, "positions": "relative"},
        {"rope_theta": 100.0, "num_layers": 1},
        {"attention": ("softmax", "linear"), "positions": "learned", "max_length": 32},
        {"feedforward": "swiglu", "tie_embeddings": False, "value_activation": "tanh"},
        {"feedforward": "moe", "positions": "none", "scale_tied_logits": False, "use_bias": False},
        {"attention": "softmax", "num_kv_heads": 1, "norm": "rms", "qk_norm": True}
        | {"gated_attention": True, "logit_soft_cap": 2.0},
    ],
    ids=str,
)
def test_export_and_reload_keep_every_bit(
    tokenizer: Tokenizer, fields: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model(tokenizer, **fields)
    write_folder(model, str(tmp_path / "out"))
    again = hyla_lm.load(str(tmp_path / "out"))
    assert_same_bits(leaves(again.params), leaves(model.params))
    assert (again.sequence_length, again.step) == (model.sequence_length, model.step)
    np.testing.assert_array_equal(again.logits(TEXT), model.logits(TEXT))


def test_scanned_layers_are_exported_one_by_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    scanned = make_model(tokenizer, attention=("hyla", "softmax"), num_layers=4, scan_layers=True)
    write_folder(scanned, str(tmp_path / "out"))
    again = hyla_lm.load(str(tmp_path / "out"))
    kernel = "attention/query/kernel"
    stacked, flat = leaves(scanned.params), leaves(again.params)
    for layer in range(4):
        expected = stacked[f"blocks/block_{layer % 2}/{kernel}"][layer // 2]
        np.testing.assert_array_equal(flat[f"blocks/block_{layer}/{kernel}"], expected)
    np.testing.assert_allclose(again.logits(TEXT), scanned.logits(TEXT), atol=1e-5)


def test_the_command_exports_a_run(
    trained_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    assert main(["export", f"--workdir={trained_run}", f"--output={out}"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: step {STEPS}, ")
    assert {path.name for path in out.iterdir()} == FILES
    run, exported = hyla_lm.load(trained_run), hyla_lm.load(out)
    assert_same_bits(leaves(exported.params), leaves(run.params))
    np.testing.assert_array_equal(exported.logits(TEXT), run.logits(TEXT))
    earlier = tmp_path / "earlier"
    assert main(["export", f"--workdir={trained_run}", f"--output={earlier}", "--step=2"]) == 0
    assert hyla_lm.load(earlier).step == 2


def test_an_export_that_fails_leaves_nothing(
    small_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.shutil, "copyfile", full_disk)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        write_folder(small_model, str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"causal": False}, r"ModelConfig\.causal = False"),
        ({"attention": "talking_heads"}, "does not know .*'talking_heads'.*; add it"),
    ],
    ids=["causal", "attention"],
)
def test_what_pytorch_cannot_run_is_refused(
    tokenizer: Tokenizer, fields: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        write_folder(make_model(tokenizer, **fields), str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_every_setting_of_a_model_is_exported_or_left_out_on_purpose() -> None:
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    assert {*description.ENTRIES, "attention"} == fields - description.LEFT_OUT


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"num_hidden_layers": 1000}, "numbers, and by config.json 1,000 layers of width 16"),
        ({"num_hidden_layers": 10**12}, "num_layers = 1000000000000 must be at most 1000"),
        ({"sequence_length": 2**20 + 1}, "sequence_length 1048577 is above 1048576"),
        ({"num_hidden_layers": 4}, r"blocks\.2\.attention\.key\.bias is None, and by config\.json"),
        ({"intermediate_size": 25}, r"is \(\(16, 24\), .* and by config\.json .*\(16, 25\)"),
        ({"attention_pattern": 3}, "describes no model of hyla_lm"),
        ({"layer_norm_eps": 1e-5}, "another layer_norm_eps"),
        ({"step": "7"}, "describes no model of hyla_lm"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_of_another_model_is_refused(
    folder: Path, entries: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "damaged"))
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**content, **entries}))
    with pytest.raises(UserError, match=sentence):
        hyla_lm.load(copy)


def test_damaged_parameters_another_tokenizer_and_another_step_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="exported at step 7: ask for no other"):
        hyla_lm.load(folder, step=8)
    copy = Path(shutil.copytree(folder, tmp_path / "damaged"))
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:-7])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged .*: export again"):
        hyla_lm.load(copy)
    monkeypatch.setattr(Tokenizer, "vocab_size", property(lambda self: 321))
    with pytest.raises(UserError, match=r"has 321 pieces but config\.json beside it says 320"):
        hyla_lm.load(folder)
