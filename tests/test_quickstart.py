"""The shipped configs: all of them load, and the quickstart runs on the real sample corpus."""

import json
import math
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.config.read_experiment import read_experiment
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
    others = ("own_text", "coordcheck")
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


@pytest.mark.parametrize("size", MESHES)
def test_a_mesh_goes_with_a_model_and_fills_its_slices(size: str) -> None:
    files = [GIN / "c4_50m_hyla.gin", GIN / "c4_rows.gin", MESHES[size]]
    experiment = read_experiment([str(path) for path in files], [])
    slices, _, chips = size.rpartition("x")
    assert experiment.mesh.replica == int(slices or 1)
    assert math.prod(experiment.mesh.sizes) == int(slices or 1) * int(chips)
    assert experiment.train.batch_size % math.prod(experiment.mesh.sizes[:3]) == 0
    assert f"v5litepod-{chips}" in MESHES[size].read_text()


@pytest.mark.full
def test_the_quickstart_learns(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    arguments = [f"--gin_file={GIN}/quickstart.gin", f"--workdir={tmp_path / 'run'}"]
    short = ["--gin.TrainConfig.steps=120", f"--gin.SampleCorpus.cache='{cache}'"]
    assert main(["train", *arguments, *short]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["validation"]["bits_per_byte"] < 3.0
    assert summary["attention"] == ["hyla"]
