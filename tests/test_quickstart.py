"""The shipped configs: all of them load, and the quickstart runs on the real sample corpus."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hyla_lm.cli.main import main
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.flops import count_parameters
from hyla_lm.tasks.language_model import LanguageModel

GIN = Path(__file__).parents[1] / "gin"
VARIANTS = {
    "quickstart": "hyla",
    "quickstart_softmax": "softmax",
    "quickstart_linear": "linear",
    "quickstart_modern": "softmax",
}


SOURCES = {
    "c4_rows": ["Rows.train = 'a'", "Rows.validation = 'b'"],
    "c4_stream": ["C4Stream.train = ('a',)", "C4Stream.validation = ('b',)"],
    "c4_seqio": [],
}
PARTS = {*SOURCES, "c4_50m"}
WHOLE = [path for path in sorted(GIN.glob("*.gin")) if path.stem not in PARTS]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_every_config_loads_from_any_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    others = ("own_text", "quickstart_muon", "coordcheck")
    named = {**dict.fromkeys(others, "hyla"), **VARIANTS}
    plain = path.stem.removesuffix("_modern")
    attention = named.get(path.stem, plain.rsplit("_", 1)[-1])
    assert read_experiment([str(path)], []).model.attention == attention
    assert not caplog.messages, "gin looks for what it includes without a word"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("c4_rows", "Rows"),
        ("c4_stream", "C4Stream"),
        pytest.param("c4_seqio", "SeqioTask", marks=pytest.mark.seqio),
    ],
)
def test_a_source_of_text_goes_with_a_model_in_any_order(name: str, source: str) -> None:
    tokenizer = [f"{source}.tokenizer = 'model'"]
    files = [str(GIN / "c4_50m_hyla.gin"), str(GIN / f"{name}.gin")]
    experiment = read_experiment(files, [*SOURCES[name], *tokenizer])
    assert read_experiment(files[::-1], [*SOURCES[name], *tokenizer]) == experiment
    task = experiment.train.task
    assert isinstance(task, LanguageModel) and type(task.data).__name__ == source


MESHES = {path.stem.removeprefix("v5e_"): path for path in GIN.glob("mesh/*.gin")}


def test_there_is_a_mesh_for_each_size_of_slice() -> None:
    assert set(MESHES) == {"1", "4", "8", "16", "64", "256", "2x16"}


@pytest.mark.parametrize("size", MESHES)
@pytest.mark.parametrize("model", ["c4_50m_hyla", "c4_50m_softmax", "c4_50m_linear"])
def test_a_mesh_goes_with_a_model_and_fills_its_slices(size: str, model: str) -> None:
    files = [GIN / f"{model}.gin", GIN / "c4_rows.gin", MESHES[size]]
    experiment = read_experiment([str(path) for path in files], [])
    slices, _, chips = size.rpartition("x")
    assert experiment.mesh.replica == int(slices or 1)
    assert math.prod(experiment.mesh.sizes) == int(slices or 1) * int(chips)
    assert experiment.train.batch_size % math.prod(experiment.mesh.sizes[:3]) == 0
    assert f"v5litepod-{chips}" in MESHES[size].read_text()


def parameters(name: str, vocabulary: int) -> int:
    model = Decoder(read_experiment([str(GIN / f"{name}.gin")], []).model, Tokens(vocabulary))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), int))
    return count_parameters(shapes["params"])


def test_modern_models_have_the_parameters_that_are_told() -> None:
    """In the first lines of their files and in docs/modern.md."""
    assert parameters("quickstart_softmax", 1024) == 527_872
    assert parameters("quickstart_modern", 1024) == 527_872
    assert parameters("c4_50m_softmax", 32_000) == 35_299_328
    assert parameters("c4_50m_softmax_modern", 32_000) == 35_474_688


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_the_quickstart_learns(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = tmp_path_factory.getbasetemp() / "cache"
    arguments = [f"--gin_file={GIN / name}.gin", f"--workdir={tmp_path}"]
    short = ["--gin.TrainConfig.steps=120", f"--gin.SampleCorpus.cache='{cache}'"]
    assert main(["train", *arguments, *short]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["validation"]["bits_per_byte"] < 3.0
    assert summary["attention"] == [VARIANTS[name]]
