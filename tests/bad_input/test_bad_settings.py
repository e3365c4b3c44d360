"""Settings and flags that are invalid or contradict each other."""

from pathlib import Path

import jax
import pytest

from hyla_lm.cli.main import main
from tests.bad_input.conftest import Reject


@pytest.mark.parametrize(
    ("binding", "named"),
    [
        ("Modelconfig.model_dim = 64", "'Modelconfig'"),
        ("Nonsense.field = 1", "'Nonsense'"),
        ("ModelConfig.modeldim = 64", "'modeldim'"),
        ("ModelConfig.model_dim = '64'", "ModelConfig.model_dim = '64' must be int"),
        ("ModelConfig.model_dim = 64.0", "ModelConfig.model_dim = 64.0 must be int"),
        ("ModelConfig.remat = 1", "ModelConfig.remat = 1 must be bool"),
        ("OptimizerConfig.learning_rate = '1e-3'", "OptimizerConfig.learning_rate = '1e-3'"),
        ("OptimizerConfig.learning_rate = -1.0", "OptimizerConfig.learning_rate = -1.0"),
        ("ModelConfig.mlp_dim = None", "ModelConfig.mlp_dim = None must be int"),
        ("ModelConfig.num_layers = 0", "ModelConfig.num_layers = 0 must be at least 1"),
        ("STEPS = 3", "STEPS"),
        ("TrainConfig.steps = %STEPS", "%STEPS"),
        ("TrainConfig.steps = @Nonsense()", "Nonsense"),
        ("TrainConfig.steps", "TrainConfig.steps"),
        ("ModelConfig.attention = hylla", "did you mean hyla?"),
        ("ModelConfig.attention = ('hyla',", "ModelConfig.attention = ('hyla',"),
        ("ModelConfig.attention = 'hyla", "ModelConfig.attention = 'hyla"),
        ("import nonsense.module", "nonsense.module"),
        ("include 'nonsense.gin'", "nonsense.gin"),
    ],
)
def test_a_binding_that_cannot_be_is_named(reject_train: Reject, binding: str, named: str) -> None:
    assert named in reject_train(binding)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ModelConfig.modeldim = 64", "'modeldim'"),
        ("Nonsense.field = 1", "'Nonsense'"),
        ("ModelConfig.model_dim = = 64", "wrong.gin"),
        ("ModelConfig.attention = ('hyla',", "wrong.gin"),
        ("ModelConfig.attention = 'hyla", "wrong.gin"),
        ("ModelConfig.model_dim 64", "wrong.gin"),
        ("import nonsense.module", "nonsense"),
        ("include 'nonsense.gin'", "nonsense.gin"),
        ("STEPS = 3", "STEPS"),
        ("TrainConfig.steps = %STEPS", "%STEPS"),
        ("\xff", "wrong.gin"),
    ],
)
def test_a_line_of_a_gin_file_that_cannot_be_is_named(
    reject: Reject, tiny_gin: Path, tmp_path: Path, text: str, named: str
) -> None:
    wrong = tmp_path / "wrong.gin"
    wrong.write_bytes(f"{text}\n".encode("latin-1"))
    files = [f"--gin_file={tiny_gin}", f"--gin_file={wrong}"]
    assert named in reject("train", *files, f"--workdir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def test_a_missing_gin_file_is_named(reject: Reject, tmp_path: Path) -> None:
    line = reject("train", "--gin_file=nonsense.gin", f"--workdir={tmp_path / 'run'}")
    assert "--gin_file=nonsense.gin" in line


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["train"], "--workdir is missing"),
        (["evaluate"], "--workdir is missing"),
        (["sample"], "--workdir is missing"),
        (["train", "--nonsense"], "--nonsense is unknown"),
    ],
)
def test_a_missing_or_unknown_flag_is_status_2(
    capsys: pytest.CaptureFixture[str], command: list[str], named: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bindings", "named"),
    [
        (["TrainConfig.task = None"], ["TrainConfig.task"]),
        (["TrainConfig.task = 'LanguageModel'"], ["TrainConfig.task"]),
        (["TrainConfig.task = @LanguageModel"], ["TrainConfig.task"]),
        (["TrainConfig.task = @Rows()"], ["TrainConfig.task"]),
        (["LanguageModel.data = None"], ["LanguageModel.data"]),
        (["LanguageModel.data = @Rows"], ["LanguageModel.data"]),
        (["LanguageModel.data = @ModelConfig()"], ["LanguageModel.data"]),
        (["LanguageModel.vocab_size = 32"], ["LanguageModel.vocab_size = 32", "320"]),
        (["LanguageModel.sequence_length = 32"], ["LanguageModel.sequence_length = 32", "16"]),
        (["TrainConfig.batch_size = 600"], ["TrainConfig.batch_size", "rows"]),
        (
            ["TrainConfig.accumulate_steps = 3"],
            ["TrainConfig.batch_size = 8", "TrainConfig.accumulate_steps = 3"],
        ),
        (["ModelConfig.head_dim = 7"], ["ModelConfig.head_dim = 7", "rotary"]),
        (["ModelConfig.attention = 'hypr'"], ["ModelConfig.attention = 'hypr'", "softmax", "hyla"]),
        (["ModelConfig.attention = ('hyla', 'soft')"], ["ModelConfig.attention", "'soft'"]),
        (["ModelConfig.attention = ()"], ["ModelConfig.attention"]),
        (
            ["ModelConfig.attention = ('hyla', 'softmax', 'linear')"],
            ["ModelConfig.num_layers = 1", "ModelConfig.attention"],
        ),
        (
            ["ModelConfig.attention_implementation = 'flash'"],
            ["ModelConfig.attention_implementation = 'flash'", "'blocked'", "'reference'"],
        ),
        (
            ["ModelConfig.attention_implementation = 'pallas_tpu'"],
            ["ModelConfig.attention_implementation = 'pallas_tpu'", "cpu", "'auto' or 'blocked'"],
        ),
        (
            ["ModelConfig.attention_implementation = 'cudnn_gpu'"],
            ["ModelConfig.attention_implementation = 'cudnn_gpu'", "GPUs", "cpu", "'blocked'"],
        ),
        (
            ["ModelConfig.positions = 'learned'", "ModelConfig.max_length = 8"],
            ["ModelConfig.max_length = 8"],
        ),
        (
            ["OptimizerConfig.warmup_steps = 12"],
            ["OptimizerConfig.warmup_steps = 12", "TrainConfig.steps = 12"],
        ),
        (["MeshConfig.data = -1", "MeshConfig.fsdp = -1"], ["MeshConfig", "-1"]),
        (["MeshConfig.data = 0"], ["MeshConfig", "data=0"]),
        (["Rows.train = ''"], ["Rows.train"]),
        (["Rows.train = 3"], ["3/manifest.json"]),
        (["Rows.train = ('a', 'b')"], ["Rows.train = ('a', 'b') must be str"]),
        (["Rows.validation = 'nonsense/rows'"], ["nonsense/rows"]),
        (["Rows.tokenizer = 'nonsense.model'"], ["nonsense.model"]),
    ],
    ids=lambda value: "; ".join(value) if isinstance(value, list) else None,
)
def test_settings_that_do_not_fit_are_named(
    reject_train: Reject, bindings: list[str], named: list[str]
) -> None:
    line = reject_train(*bindings)
    assert all(name in line for name in named), line


@pytest.mark.parametrize("axis", ["replica", "data", "fsdp", "model"])
def test_a_mesh_larger_than_the_devices_is_named(reject_train: Reject, axis: str) -> None:
    sizes = {"replica": 1, "data": 1, "fsdp": 1, "model": 1, axis: 2 * jax.device_count()}
    line = reject_train(*(f"MeshConfig.{name} = {size}" for name, size in sizes.items()))
    assert f"{axis}={2 * jax.device_count()}" in line
    assert f"there are {jax.device_count()}" in line
