"""A mistake of a newcomer is one sentence that says what to change: the rows of mistakes.py."""

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from hyla_lm.run.evaluation import read_documents
from tests.bad_input.conftest import status_of
from tests.bad_input.mistakes import MISTAKES
from tests.tiny_runs import write_gin

LONGEST = 600
ROOT = Path(__file__).parents[2]
WRITTEN = {
    "empty.gin": "",
    "prose.gin": "Train a model of two layers.\n",
    "open.gin": "ModelConfig.attention = ('hyla',\n",
    "including.gin": "include 'gin/quickstrat.gin'\n",
    "cycle.gin": "include '{home}/circle.gin'\n",
    "circle.gin": "include '{home}/cycle.gin'\n",
    "text.txt": "a text that is too short for anything\n",
}


@pytest.fixture(scope="module")
def places(
    tiny_rows: Rows, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Files and folders that people confuse, by the names that the rows have."""
    home = tmp_path_factory.mktemp("places")
    for name, text in WRITTEN.items():
        (home / name).write_text(text.replace("{home}", str(home)))
    found = {Path(name).stem: home / name for name in WRITTEN}
    for name in ("folder", "started"):
        (home / name).mkdir()
        found[name] = home / name
    (home / "folder" / "notes.txt").write_text("mine")
    shutil.copy(trained / "config.gin", home / "started")
    (home / "binary.gin").write_bytes(b"\xff\xfe\x00")
    write_gin(home, tiny_rows)
    copies = run_copies(trained, home)
    own = {name: home / f"{name}.gin" for name in ("binary", "tiny")}
    rows = {"rows": Path(tiny_rows.train).parent, "tokenizer": Path(tiny_rows.tokenizer)}
    return {**found, **own, **rows, **copies, "run": trained, "new": home / "new", "root": ROOT}


def run_copies(trained: Path, home: Path) -> dict[str, Path]:
    """Copies of the run that are compared with it, most of them with a fault."""
    names = ("copy", "narrow", "other_rows")
    for name in names:
        shutil.copytree(trained, home / name, ignore=shutil.ignore_patterns("checkpoints", ".*"))
    config = (home / "narrow" / "config.gin").read_text()
    (home / "narrow" / "config.gin").write_text(config.replace("model_dim = 8", "model_dim = 4"))
    losses = read_documents(trained, 2)
    assert losses is not None
    rows = replace(losses, facts={**losses.facts, "identity": {"validation rows": "others"}})
    (home / "other_rows" / "documents" / "2.npz").write_bytes(rows.to_bytes())
    return {name: home / name for name in names}


@pytest.fixture(autouse=True)
def nothing_is_changed(trained: Path, places: dict[str, Path]) -> Iterator[None]:
    """A refused command trains nothing and leaves the run of others alone."""
    before = (trained / "metrics.jsonl").read_text()
    yield
    assert (trained / "metrics.jsonl").read_text() == before
    assert not list(places["new"].glob("**/metrics.jsonl"))
    shutil.rmtree(places["new"], ignore_errors=True)


@pytest.mark.parametrize(("line", "fragment"), MISTAKES, ids=lambda text: text[:99])
def test_a_mistake_is_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str], places: dict[str, Path], line: str, fragment: str
) -> None:
    capsys.readouterr()
    status = status_of(*shlex.split(line.format_map(places)))
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), err
    assert "Traceback" not in err and len(err.splitlines()) <= 2 and err.endswith("\n")
    sentence = err.splitlines()[-1]
    assert sentence.startswith(("hyla-lm", "tpu.")) and fragment.format_map(places) in sentence
    assert len(sentence) < LONGEST


@pytest.mark.parametrize("command", ["", "sample"])
def test_help_is_the_help_of_the_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    for line in (f"help {command}", f"{command} --help"):
        assert status_of(*line.split()) == 0
    first, second = capsys.readouterr().out.split("usage: ")[1:]
    assert first == second
    assert command == "" or ("(default: 0.8)" in first and "Example: hyla-lm sample" in first)
