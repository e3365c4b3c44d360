"""hyla-lm compare on trained runs: what is found, and the files that it leaves."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import hyla_lm
from hyla_lm.cli.main import main
from hyla_lm.tools.compare import comparison, page
from hyla_lm.tools.compare.charts import curves, forest
from tests.comparing.written_runs import documents, write_run
from tests.conftest import SEQUENCE_LENGTH, TINY, sentences

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.fixture(scope="module")
def runs(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two seeds of a configuration, and one that hardly learns."""
    home = tmp_path_factory.mktemp("runs")
    (home / "run.gin").write_text(
        TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH).replace('"hyla"', '"softmax"')
    )
    bindings = {
        "good": [],
        "seed1": ["--gin.TrainConfig.seed=1"],
        "worse": ["--gin.OptimizerConfig.learning_rate=1e-4"],
    }
    for name, more in bindings.items():
        line = ["train", f"--gin_file={home / 'run.gin'}", f"--workdir={home / name}", *more]
        assert main(line) == 0
    return {name: str(home / name) for name in bindings}


def test_two_seeds_are_one_group_and_differ_by_nothing(runs: dict[str, str]) -> None:
    found = hyla_lm.compare([runs["good"], runs["seed1"]])
    assert len(found.groups) == 1 and found.pairs == []
    first, second = found.groups[0].runs
    assert (first.seed, second.seed) == ("0", "1")
    apart = abs(first.bits_per_byte - second.bits_per_byte)
    [note] = [note for note in found.notes if note.startswith("No difference found")]
    assert f"up to {apart:.4f} bits per byte apart" in note
    assert f"(standard deviation {apart / 2**0.5:.4f})" in note


def test_a_run_that_hardly_learned_is_found_worse(runs: dict[str, str]) -> None:
    found = hyla_lm.compare([runs["good"], runs["worse"]])
    [pair] = found.pairs
    assert pair.over_documents.high < 0 and pair.over_seeds is None
    assert pair.verdict.startswith("learning_rate=0.01 is better by 0.")
    summaries = [json.loads(Path(runs[n], "summary.json").read_text()) for n in ("good", "worse")]
    expected = [summary["validation"]["bits_per_byte"] for summary in summaries]
    assert [g.bits_per_byte for g in found.groups] == pytest.approx(expected, rel=1e-6)
    assert pair.difference == pytest.approx(expected[0] - expected[1], rel=1e-5)
    json.dumps(found.as_dict())


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


def test_the_command_tells_and_leaves_a_picture_a_page_and_the_figures(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "comparison"
    assert main(["compare", runs["good"], runs["worse"], f"--output={folder}"]) == 0
    out = capsys.readouterr().out
    assert "learning_rate=0.01 is better by" in out and "one seed each" in out
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
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
    """Tags that are open, and every attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> comparison.Comparison:
    """A comparison whose names and texts are HTML."""
    rng = np.random.default_rng(0)
    names = ("<b>", '"&amp;')
    folders = [
        write_run(
            tmp_path / f"r{n}",
            {step: documents(rng.exponential(200, 30) + 30 * n) for step in (5, 10)},
            f"LanguageModel.closing_prompt = {name!r}",
        )
        for n, name in enumerate(names)
    ]
    text = "<script>alert('x')</script> & <img src=http://a>"
    monkeypatch.setattr(comparison, "texts_of", lambda *_: dict.fromkeys(_[2], text))
    return comparison.compare(folders, with_texts=True)


def test_a_page_is_one_file_without_network_whose_texts_are_escaped(
    strange: comparison.Comparison,
) -> None:
    html = page.page(strange)
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert not reader.seen & {"script", "img", "link", "iframe", "b", "style src"}
    without_text = html.replace("src=http://a", "")
    assert "http" not in without_text and "url(" not in html and "@import" not in html
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &lt;img" in html
    assert "prefers-color-scheme: dark" in html


def test_charts_stay_inside_their_frame(strange: comparison.Comparison) -> None:
    for svg in (curves(strange), forest(strange)):
        frame = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
        assert frame is not None
        width, height = map(float, frame.groups())
        for axis, limit in (("x", width), ("y", height)):
            places = re.findall(rf' c?{axis}[12]?="(-?[\d.]+)"', svg)
            assert places and all(0 <= float(place) <= limit for place in places)


def test_a_page_without_the_rows_says_why(tmp_path: Path) -> None:
    """The runs are of another machine: figures stand, and a note names what is missing."""
    one, other = (
        write_run(tmp_path / name, {5: documents([100.0 + n, 150.0, 90.0])}, settings)
        for n, (name, settings) in enumerate(
            (
                ("a", "TrainConfig.task = @LanguageModel()\nTrainConfig.steps = 2000"),
                ("b", "TrainConfig.steps = 7"),
            )
        )
    )
    found = comparison.compare([one, other], with_texts=True)
    assert any("could not be read: LanguageModel.data is not set" in n for n in found.notes)
    assert "row " in page.page(found)


def test_without_matplotlib_a_picture_is_refused_in_a_sentence(
    runs: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "hyla_lm.tools.compare.figure", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    line = ["compare", runs["good"], runs["worse"], f"--output={tmp_path / 'out'}"]
    assert main(line) == 2
    assert "--output needs matplotlib: pip install 'hyla_lm[evals]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
