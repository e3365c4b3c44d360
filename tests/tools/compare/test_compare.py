"""hyla-lm compare: what it finds of trained runs, and the files that it leaves."""

import base64
import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import hyla_lm
from hyla_lm.cli.main import main
from hyla_lm.tools.compare import report
from tests.conftest import SEQUENCE_LENGTH, TINY, sentences
from tests.tools.compare.written_runs import documents, write_run

pytestmark = pytest.mark.usefixtures("programs_once")
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def runs(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A run, and one that hardly learns."""
    home = tmp_path_factory.mktemp("runs")
    (home / "run.gin").write_text(
        TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH).replace('"hyla"', '"softmax"')
    )
    for name, rate in (("good", "1e-2"), ("worse", "1e-4")):
        line = ["train", f"--gin_file={home / 'run.gin'}", f"--workdir={home / name}"]
        assert main([*line, f"--gin.OptimizerConfig.learning_rate={rate}"]) == 0
    return {name: str(home / name) for name in ("good", "worse")}


def test_bits_per_byte_are_those_of_the_runs(runs: dict[str, str]) -> None:
    found = hyla_lm.compare([runs["good"], runs["worse"]])
    [pair] = found.pairs
    assert pair.over_documents.high < 0 and pair.over_seeds is None
    assert pair.verdict.startswith("learning_rate=0.01 is better by 0.")
    summaries = [json.loads(Path(runs[n], "summary.json").read_text()) for n in ("good", "worse")]
    expected = [summary["validation"]["bits_per_byte"] for summary in summaries]
    assert [g.bits_per_byte for g in found.groups] == pytest.approx(expected, rel=1e-6)
    assert pair.difference == pytest.approx(expected[0] - expected[1], rel=1e-5)


def test_a_run_without_losses_is_evaluated_where_that_is_asked(
    runs: dict[str, str], tmp_path: Path
) -> None:
    """Even where that run had switched them off."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("metrics.jsonl", "checkpoints"):
        (bare / name).symlink_to(Path(runs["good"]) / name)
    config = (Path(runs["good"]) / "config.gin").read_text()
    (bare / "config.gin").write_text(f"{config}\nLanguageModel.document_losses = False\n")
    found = hyla_lm.compare([str(bare), runs["worse"]], evaluate=True)
    assert found.pairs[0].difference == pytest.approx(
        hyla_lm.compare([runs["good"], runs["worse"]]).pairs[0].difference, rel=1e-5
    )
    assert not (bare / "documents").exists()


def test_the_command_prints_and_leaves_a_picture_a_page_and_the_figures(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "comparison"
    assert main(["compare", runs["good"], runs["worse"], f"--output={folder}"]) == 0
    out = capsys.readouterr().out
    assert "learning_rate=0.01 is better by" in out and "one seed each" in out
    assert (folder / "comparison.png").read_bytes().startswith(PNG)
    html = (folder / "comparison.html").read_text()
    text = sentences(180, 1 + 180 % 9)  # of a validation document (tests/conftest.py)
    assert text[:100] in html or sentences(181, 1 + 181 % 9)[:100] in html
    assert main(["compare", runs["good"], runs["worse"], "--json"]) == 0
    printed, written = (
        json.loads(content)
        for content in (capsys.readouterr().out, (folder / "comparison.json").read_text())
    )
    assert printed["pairs"][0]["difference"] == written["pairs"][0]["difference"]


class Reader(HTMLParser):
    """Tags that are open, those that occurred, and the sources of images."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.sources += [value or "" for name, value in attrs if name == "src"]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_one_file_without_network_whose_texts_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    folders = [
        write_run(
            tmp_path / f"r{n}",
            {step: documents(rng.exponential(200, 30) + 30 * n) for step in (5, 10)},
            f"LanguageModel.closing_prompt = {name!r}",
        )
        for n, name in enumerate(("<b>", '"&amp;'))
    ]
    text = "<script>alert('x')</script> & <link href=http://a>"
    monkeypatch.setattr(report, "texts_of", lambda *_: dict.fromkeys(_[2], text))
    found = report.with_texts(hyla_lm.compare(folders), trust_imports=False)
    html = report.page(found, report.draw(found))
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [] and not reader.tags & {"script", "link", "iframe", "b"}
    [image] = reader.sources
    assert base64.b64decode(image.removeprefix("data:image/png;base64,")).startswith(PNG)
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &lt;link" in html


def test_a_page_without_the_rows_says_why(tmp_path: Path) -> None:
    """The runs are of another machine: figures stand, and a note names what is missing."""
    first = "TrainConfig.task = @LanguageModel()\nTrainConfig.steps = 2000"
    runs = [
        write_run(tmp_path / name, {5: documents([100.0 + n, 150.0, 90.0])}, settings)
        for n, (name, settings) in enumerate((("a", first), ("b", "TrainConfig.steps = 7")))
    ]
    found = report.with_texts(hyla_lm.compare(runs), trust_imports=False)
    assert any("could not be read: LanguageModel.data is not set" in n for n in found.notes)
    assert "row " in report.page(found, b"")


def test_without_matplotlib_a_picture_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["compare", "a", "b", f"--output={tmp_path / 'out'}"]) == 2
    assert "matplotlib: pip install 'hyla_lm[plots]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
