"""hyla-lm compare: what it finds of trained runs, and the files that it leaves."""

import json
from pathlib import Path

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


def test_texts_of_a_page_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        write_run(tmp_path / name, {5: documents([nats, 150.0, 90.0])}, f"A.b = {name!r}")
        for name, nats in (("<b>", 100.0), ("c", 101.0))
    ]
    text = "<script>alert('x')</script> & <link href=http://a>"
    monkeypatch.setattr(report, "texts_of", lambda *_: dict.fromkeys(_[2], text))
    found = report.with_texts(hyla_lm.compare(runs), trust_imports=False)
    html = report.page(found, b"")
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &lt;link" in html
    assert not any(tag in html for tag in ("<script", "<link", "<b>"))


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
