"""A user's mistakes: status 2 and one sentence that names what to change, before any step."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from data.train_tokenizer import train_tokenizer
from hyla_lm import config
from hyla_lm.cli import main
from hyla_lm.input.prepared import Rows

Reject = Callable[..., str]
TRAINED = """
TrainConfig.task = @LanguageModel()
TrainConfig.steps = 2
TrainConfig.batch_size = 8
LanguageModel.data = @Rows()
LanguageModel.sequence_length = 16
Rows.train = "{rows.train}"
Rows.validation = "{rows.validation}"
Rows.tokenizer = "{rows.tokenizer}"
ModelConfig.num_layers = 1
ModelConfig.model_dim = 8
ModelConfig.num_heads = 2
ModelConfig.head_dim = 4
ModelConfig.mlp_dim = 8
ModelConfig.dtype = "float32"
OptimizerConfig.warmup_steps = 1
"""


@pytest.fixture(autouse=True)
def forget_bindings() -> Iterator[None]:
    yield
    config.load([], [])


@pytest.fixture
def reject(capsys: pytest.CaptureFixture[str]) -> Reject:
    """Runs a command that must fail; returns its one line on stderr."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (status, out) == (2, ""), err
        assert err.startswith("hyla-lm: ") and err.endswith("\n") and err.count("\n") == 1, err
        return err

    return run


@pytest.fixture
def reject_train(reject: Reject, tiny_gin: Path, tmp_path: Path) -> Reject:
    """Trains the tiny run with bindings that must not reach the first step."""

    def run(*bindings: str) -> str:
        workdir = tmp_path / "run"
        options = [f"--gin.{binding}" for binding in bindings]
        line = reject("train", f"--gin_file={tiny_gin}", f"--workdir={workdir}", *options)
        assert not (workdir / "metrics.jsonl").exists()
        return line

    return run


@pytest.fixture
def damaged(tiny_rows: Rows, tmp_path: Path) -> Rows:
    """A copy of the rows to damage."""
    home = tmp_path / "damaged"
    shutil.copytree(Path(tiny_rows.train).parent, home)
    return Rows(str(home / "train"), str(home / "validation"), str(home / "tokenizer.model"))


def bound_to(rows: Rows) -> list[str]:
    return [f'Rows.{name} = "{getattr(rows, name)}"' for name in ("train", "validation")] + [
        f'Rows.tokenizer = "{rows.tokenizer}"'
    ]


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
        ("ModelConfig.attention = hyla", "ModelConfig.attention = hyla"),
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


@pytest.mark.parametrize("command", [["train"], ["evaluate"], ["sample"], ["train", "--nonsense"]])
def test_a_missing_or_unknown_flag_is_status_2(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert "--workdir" in capsys.readouterr().err


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
            ["ModelConfig.num_layers = 2", "ModelConfig.attention"],
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
        (["Rows.train = 3"], ["Rows.train = 3"]),
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


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "zeros"])
def test_a_damaged_shard_is_named(
    reject_train: Reject, damaged: Rows, split: str, damage: str
) -> None:
    shard = sorted(Path(getattr(damaged, split)).glob("*.arrayrecord"))[-1]
    content = shard.read_bytes()
    if damage == "missing":
        shard.unlink()
    else:
        kept = {"empty": b"", "truncated": content[:-1], "zeros": bytes(len(content))}
        shard.write_bytes(kept[damage])
    named = shard.parent if damage == "zeros" else shard
    assert str(named) in reject_train(*bound_to(damaged))


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"shards": [1]}', "\x00"], ids=repr)
def test_a_file_that_is_no_manifest_is_named(
    reject_train: Reject, damaged: Rows, split: str, text: str
) -> None:
    manifest = Path(getattr(damaged, split), "manifest.json")
    manifest.write_text(text)
    assert str(manifest) in reject_train(*bound_to(damaged))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 1),
        ("rows", "535"),
        ("shards", []),
        ("format", 1),
        ("dtype", "uint32"),
        ("vocab_size", 321),
        ("max_token_id", 320),
        ("max_token_id", None),
        ("surplus", 1),
    ],
)
def test_a_manifest_that_contradicts_its_rows_is_named(
    reject_train: Reject, damaged: Rows, field: str, value: object
) -> None:
    manifest = Path(damaged.train, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), field: value}))
    assert str(manifest) in reject_train(*bound_to(damaged))


def test_missing_rows_are_named(reject_train: Reject, damaged: Rows) -> None:
    shutil.rmtree(damaged.train)
    assert str(Path(damaged.train, "manifest.json")) in reject_train(*bound_to(damaged))


def test_another_tokenizer_than_that_of_the_rows_is_named(
    reject_train: Reject, tiny_rows: Rows, tmp_path: Path
) -> None:
    other = tmp_path / "other.model"
    train_tokenizer([f"number {n} or {n * n}" for n in range(400)], 320, other)
    line = reject_train(*bound_to(replace(tiny_rows, tokenizer=str(other))))
    assert str(other) in line
    assert str(Path(tiny_rows.train, "manifest.json")) in line


@pytest.mark.parametrize(
    "content", [b"", b"no model\n", bytes(100)], ids=["empty", "text", "zeros"]
)
def test_a_file_that_is_no_tokenizer_is_named(
    reject_train: Reject, tiny_rows: Rows, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "no.model"
    path.write_bytes(content)
    assert str(path) in reject_train(*bound_to(replace(tiny_rows, tokenizer=str(path))))


@pytest.mark.parametrize("below", ["", "run"], ids=["a_file", "below_a_file"])
def test_a_workdir_that_cannot_be_is_named(
    reject: Reject, tiny_gin: Path, tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").write_text("mine")
    workdir = tmp_path / "file" / below
    line = reject("train", f"--gin_file={tiny_gin}", f"--workdir={workdir}")
    assert f"--workdir={workdir}" in line


def test_a_workdir_of_something_else_is_left_alone(
    reject: Reject, tiny_gin: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "mine"
    workdir.mkdir()
    (workdir / "notes.txt").write_text("mine")
    line = reject("train", f"--gin_file={tiny_gin}", f"--workdir={workdir}")
    assert f"--workdir={workdir}" in line and "notes.txt" in line
    assert [path.name for path in workdir.iterdir()] == ["notes.txt"]


@pytest.fixture(scope="module")
def trained(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run of two steps."""
    home = tmp_path_factory.mktemp("trained")
    (home / "run.gin").write_text(TRAINED.format(rows=tiny_rows))
    assert main(["train", f"--gin_file={home / 'run.gin'}", f"--workdir={home / 'run'}"]) == 0
    return home / "run"


@pytest.mark.parametrize(
    ("binding", "named"),
    [
        ("ModelConfig.mlp_dim = 16", ["ModelConfig.mlp_dim = 8", "16"]),
        ("ModelConfig.attention = 'softmax'", ["ModelConfig.attention = 'hyla'", "'softmax'"]),
        ("TrainConfig.seed = 1", ["TrainConfig.seed = 0", "1"]),
    ],
)
def test_another_run_does_not_go_on_in_the_workdir(
    reject: Reject, trained: Path, binding: str, named: list[str]
) -> None:
    before = (trained / "metrics.jsonl").read_text()
    more = ["--gin.TrainConfig.steps = 4", f"--gin.{binding}"]
    line = reject("train", f"--gin_file={trained}/config.gin", f"--workdir={trained}", *more)
    assert all(name in line for name in [*named, str(trained)]), line
    assert (trained / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("command", ["train", "evaluate", "sample"])
def test_a_run_does_not_go_on_with_other_rows(
    reject: Reject, trained: Path, damaged: Rows, command: str
) -> None:
    manifest = Path(damaged.train, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "source": "elsewhere"}))
    line = reject(
        command,
        f"--gin_file={trained}/config.gin",
        f"--workdir={trained}",
        *(f"--gin.{binding}" for binding in bound_to(damaged)),
        *(["--prompt=ba"] if command == "sample" else []),
    )
    assert "train rows" in line and str(trained) in line


@pytest.mark.parametrize("command", [["evaluate"], ["sample", "--prompt=ba"]], ids=" ".join)
def test_a_workdir_without_a_run_is_named(
    reject: Reject, tmp_path: Path, command: list[str]
) -> None:
    assert f"--workdir={tmp_path}" in reject(*command, f"--workdir={tmp_path}")


@pytest.mark.parametrize("command", [["evaluate"], ["sample", "--prompt=ba"]], ids=" ".join)
def test_a_run_without_a_checkpoint_is_named(
    reject: Reject, trained: Path, tmp_path: Path, command: list[str]
) -> None:
    shutil.copy(trained / "config.gin", tmp_path)
    line = reject(*command, f"--workdir={tmp_path}")
    assert str(tmp_path) in line and "no checkpoint" in line and "None" not in line


@pytest.mark.parametrize("command", [["evaluate"], ["sample", "--prompt=ba"]], ids=" ".join)
def test_a_step_without_checkpoint_is_named(
    reject: Reject, trained: Path, command: list[str]
) -> None:
    line = reject(*command, f"--workdir={trained}", "--step=1")
    assert "step 1" in line and "it has 2" in line


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--prompt=" + "ba " * 40], "prompt"),
        (["--prompt=ba", "--max_tokens=99"], "--max_tokens=99"),
        (["--prompt=ba", "--max_tokens=0"], "--max_tokens"),
        (["--prompt=ba", "--temperature=-1"], "--temperature"),
        (["--prompt=ba", "--temperature=nan"], "--temperature"),
        (["--prompt=ba", "--top_k=-1"], "--top_k"),
        (["--prompt=ba", "--top_p=0"], "--top_p"),
        (["--prompt=ba", "--top_p=1.1"], "--top_p"),
    ],
)
def test_flags_of_sample_that_do_not_fit_are_named(
    reject: Reject, trained: Path, flags: list[str], named: str
) -> None:
    assert named in reject("sample", f"--workdir={trained}", *flags)


def test_a_workdir_in_another_kind_of_store_is_refused(reject: Reject, tiny_gin: Path) -> None:
    line = reject("train", f"--gin_file={tiny_gin}", "--workdir=s3://bucket/run")
    assert "s3://bucket/run" in line and "gs://" in line
