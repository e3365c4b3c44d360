"""Several sets of rows to evaluate on: their figures, their mistakes, and that none is identity."""

import json
from pathlib import Path

import pytest

from hyla_lm.data.preparation import write_rows
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.tasks.language_model import LanguageModel
from tests import tiny_runs
from tests.conftest import SEQUENCE_LENGTH, VOCAB_SIZE, sentences
from tests.run_lines import measured
from tests.tiny_runs import write_gin

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.fixture(scope="module")
def home(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's gin file, rows `again` of the text of the main set, and other rows."""
    home = tmp_path_factory.mktemp("sets")
    write_gin(home, tiny_rows, "TrainConfig.eval_every = 0\n")
    tokenizer = Tokenizer(tiny_rows.tokenizer)
    write(home / "again", [sentences(seed, 1 + seed % 9) for seed in range(180, 200)], tokenizer)
    write(home / "books", [sentences(seed, 4) for seed in range(300, 305)], tokenizer)
    other = home / "other.model"
    train_tokenizer([sentences(seed, 9) for seed in range(500, 600)], VOCAB_SIZE, other)
    write(home / "foreign", [sentences(1, 9)], Tokenizer(str(other)))
    return home


def write(folder: Path, texts: list[str], tokenizer: Tokenizer) -> None:
    form = dict(split="validation", source=folder.name, sequence_length=SEQUENCE_LENGTH, seed=0)
    write_rows(texts, tokenizer, folder, **form)


def train(home: Path, workdir: Path, *sets: str) -> int:
    return tiny_runs.train(home / "tiny.gin", workdir, f"LanguageModel.validation_sets={sets!r}")


def test_sets_come_and_go_while_a_run_goes_on(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = tmp_path / "run"
    assert train(home, trained) == 0
    alone = measured(trained)[-1]
    capsys.readouterr()
    sets = (f"again={home}/again", f"books={home}/books")
    assert train(home, trained, *sets) == 0
    both = measured(trained)[-1]
    assert both["validation/books_bits_per_byte"] != both["validation/bits_per_byte"]
    for name in ("loss_nats", "bits_per_byte", "accuracy"):
        of_the_same_text = pytest.approx(both[f"validation/{name}"], rel=1e-6)
        assert both[f"validation/again_{name}"] == of_the_same_text
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["validation"]["books_loss_nats"] == both["validation/books_loss_nats"]
    said = capsys.readouterr().out
    assert "validation books" in said.split("step 12")[0], "the start-up summary names the sets"
    assert f", books {both['validation/books_loss_nats']:.4f}" in said
    assert f"{both['validation/books_bits_per_byte']:.3f} bits per byte" in said

    assert train(home, trained) == 0
    assert measured(trained)[-1] == alone


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (("a={home}/again", "a=y"), "has 'a=y'"),
        (("a={home}/foreign",), "was made with another tokenizer"),
    ],
)
def test_sets_that_cannot_be_are_one_sentence(
    sets: tuple[str, ...], sentence: str, home: Path, tiny_rows: Rows
) -> None:
    given = tuple(entry.format(home=home, rows=tiny_rows) for entry in sets)
    with pytest.raises(UserError, match=sentence):
        LanguageModel(tiny_rows, SEQUENCE_LENGTH, validation_sets=given).prepare_task(8)
