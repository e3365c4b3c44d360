"""Collecting docstrings, and corpora on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.data.corpus import Document, split_of, write_documents
from hyla_lm.data.docstrings import collect
from hyla_lm.errors import UserError
from hyla_lm.input.documents import read_texts

SENTENCES = [f"This is sentence number {n}, and it is long enough." for n in "abcdef"]


def module(*paragraphs: str) -> str:
    return '"""' + "\n\n".join(paragraphs) + '"""\n'


def test_parses_without_importing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    code = f"open({str(touched)!r}, 'w')\nraise SystemExit\n"
    (tmp_path / "effect.py").write_text(module(*SENTENCES) + code)
    assert [doc.url for doc in collect([tmp_path]).documents] == ["python://effect.py"]
    assert not touched.exists()


def test_source_order_and_nesting(tmp_path: Path) -> None:
    lines = [f"    '''{SENTENCES[1]}'''", f"    def f(self):\n        '''{SENTENCES[2]}'''"]
    code = module(SENTENCES[0]) + "class A:\n" + "\n".join(lines) + "\n"
    code += f"if A:\n    def g():\n        '''{SENTENCES[3]}'''\n"
    (tmp_path / "a.py").write_text(code)
    assert collect([tmp_path]).documents[0].text == "\n".join(SENTENCES[:4])


def test_repeats_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(module(*SENTENCES[:4], SENTENCES[0]))
    (tmp_path / "b.py").write_text(module(*SENTENCES[:4]))
    (tmp_path / "c.py").write_text(module(*SENTENCES))
    (tmp_path / "d.py").write_text(module(SENTENCES[5], *(s + " Yes." for s in SENTENCES)))
    collection = collect([tmp_path])
    assert [doc.url[-4:] for doc in collection.documents] == ["a.py", "d.py"]
    assert collection.documents[0].text == "\n".join(SENTENCES[:4])
    assert SENTENCES[5] not in collection.documents[1].text.split("\n")
    assert collection.repeated_paragraphs == 1 + 4 + 4 + 1


def test_a_document_has_three_sentences_and_a_hundred_characters(tmp_path: Path) -> None:
    sentence = "The {} of a module has more than fifty characters in it."
    for name in ("ab", "cde", "fghi"):
        (tmp_path / f"{name}.py").write_text(module(*map(sentence.format, name)))
    (tmp_path / "short.py").write_text(module(*map("It is {} or not.".format, "jkl")))
    urls = [document.url for document in collect([tmp_path]).documents]
    assert urls == ["python://cde.py", "python://fghi.py"]


def test_unreadable_files_are_counted_and_tests_skipped(tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("def")
    (tmp_path / "null.py").write_bytes(b"a\0b")
    (tmp_path / "coding.py").write_bytes(b'"""\xff\xfe"""')
    (tmp_path / "deep.py").write_text("-" * 100_000 + "1")
    (tmp_path / "empty.py").write_text("")
    for folder in ("tests", "_vendor", "idle_test"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(module(*SENTENCES))
    collection = collect([tmp_path])
    assert (collection.files, collection.unreadable, collection.documents) == (5, 4, [])


def test_workers_read_what_one_process_reads(
    python_root: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = python_root(40)
    alone = collect([root])
    monkeypatch.setattr("hyla_lm.data.docstrings.SERIAL_BELOW", 0)
    assert collect([root]) == alone
    assert len(alone.documents) == 40


def test_split_is_stable() -> None:
    urls = [f"python://module{n}.py" for n in range(5000)]
    chosen = [url for url in urls if split_of(url) == "validation"]
    assert chosen[:2] == ["python://module10.py", "python://module27.py"]
    assert 60 < len(chosen) < 140


def test_documents_round_trip_and_repeat_bytewise(tmp_path: Path) -> None:
    documents = [Document("one\ntwo é", "python://a.py"), Document("three", "python://b.py")]
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    for path in (first, second):
        write_documents(path, documents)
    assert list(read_texts(str(first))) == ["one\ntwo é", "three"]
    assert first.read_bytes() == second.read_bytes()


def test_reads_plain_lines_and_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "two"}\n')
    (tmp_path / "a.txt").write_text("three\nfour\n")
    assert list(read_texts(str(tmp_path / "a.jsonl"))) == ["one", "two"]
    assert list(read_texts(str(tmp_path / "a.txt"))) == ["three\nfour\n"]


@pytest.mark.parametrize("content", [b"no json\n", b'{"url": "x"}\n', b"[1]\n", b"\xff\n"])
def test_damaged_documents_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="a.jsonl"):
        list(read_texts(str(path)))


def test_absent_and_cut_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    with pytest.raises(UserError, match="does not exist"):
        list(read_texts(str(path)))
    write_documents(path, [Document("some text" * 50, "u")])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="cut short"):
        list(read_texts(str(path)))
