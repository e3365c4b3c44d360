"""Streaming text: the same tokens as prepared rows, and exact resumption at any token."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from hyla_lm.config import UserError
from hyla_lm.input.files import list_files
from hyla_lm.input.prepared import Rows
from hyla_lm.input.share import Share
from hyla_lm.input.source import LanguageData, Reading
from hyla_lm.input.stream import C4Stream
from hyla_lm.input.tokenizer import Tokenizer
from tests.conftest import sentences
from tests.data.c4_layouts import write_array_records, write_json_gz

LENGTH, BATCH, SHARDS = 16, 4, 4
# Documents shorter than a row, longer than several blocks of rows, empty, and not ASCII.
TEXTS = [sentences(seed, 1 + seed % 5) for seed in range(150)] + [
    "",
    "é🙂 naïve\ttext\nof lines",
    sentences(7, 150),
    *(sentences(seed, 2) for seed in range(1000, 1040)),
]
KINDS = ("json.gz", "ArrayRecord")
ONE = Share()


@pytest.fixture(scope="module")
def tokenizer(tiny_rows: Rows) -> Tokenizer:
    return Tokenizer(tiny_rows.tokenizer)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("c4")
    writers = {"json.gz": write_json_gz, "ArrayRecord": write_array_records}
    for kind, write in writers.items():
        write(TEXTS, home / kind, "train", SHARDS)
        write(TEXTS[:30], home / kind, "validation", 2)
    return {kind: home / kind for kind in KINDS}


@pytest.fixture(params=KINDS)
def source(
    request: pytest.FixtureRequest, folders: dict[str, Path], tokenizer: Tokenizer
) -> C4Stream:
    return source_of(folders[request.param], tokenizer.path)


def source_of(folder: Path, tokenizer: str, **settings: object) -> C4Stream:
    return C4Stream(
        train=(f"{folder}/c4-train.*",),
        validation=(f"{folder}/c4-validation.*",),
        tokenizer=tokenizer,
        **settings,
    )


def opened(source: C4Stream, **reading: int) -> LanguageData:
    return source.open(LENGTH, BATCH, Reading(**reading))


def batches(
    data: LanguageData,
    count: int,
    share: Share = ONE,
    states: list[dict] | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, list[dict]]:
    """Tokens of the next batches, and the state after each (with that before the first)."""
    stream = data.train.stream(BATCH * share.count, seed, share, states)
    saved, tokens = [stream.state()], []
    for batch in islice(stream, count):
        tokens.append(batch["tokens"])
        saved.append(stream.state())
    stream.close()
    return np.stack(tokens), saved


def unpacked(tokens: np.ndarray) -> list[int]:
    """The stream of tokens that rows were cut from."""
    rows = tokens.reshape(-1, LENGTH + 1)
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    return [*rows[0, :1].tolist(), *rows[:, 1:].ravel().tolist()]


def documents_in(tokens: list[int], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Whole documents, in order; one cut at the end is left out."""
    starts = [place for place, token in enumerate(tokens) if token == tokenizer.bos]
    return [tuple(tokens[a:b]) for a, b in pairwise(starts)]


def expected_documents(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    return [(tokenizer.bos, *tokenizer.encode(text), tokenizer.eos) for text in TEXTS]


def test_every_epoch_holds_each_document_once(source: C4Stream, tokenizer: Tokenizer) -> None:
    wanted = expected_documents(tokenizer)
    per_epoch = sum(map(len, wanted))
    tokens, _ = batches(opened(source), 2 * per_epoch // (BATCH * LENGTH) + 1)
    found = documents_in(unpacked(tokens), tokenizer)
    first, second = found[: len(wanted)], found[len(wanted) : 2 * len(wanted)]
    assert sorted(first) == sorted(second) == sorted(wanted)
    assert first != second


def test_the_order_is_of_the_seed(source: C4Stream) -> None:
    data = opened(source)
    first, again, other = (batches(data, 30, seed=seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_threads_and_read_ahead_change_nothing(
    folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    for kind in KINDS:
        plain = batches(opened(source_of(folders[kind], tokenizer.path)), 60)
        several = source_of(folders[kind], tokenizer.path, tokenizer_threads=3)
        hurried = batches(opened(several, threads=4, ahead=2), 60)
        np.testing.assert_array_equal(plain[0], hurried[0])
        assert plain[1] == hurried[1]


def test_every_saved_state_continues_exactly(source: C4Stream) -> None:
    data = opened(source)
    tokens, states = batches(data, 200)
    for step in [*range(0, 40, 3), *range(40, 190, 17)]:
        resumed, _ = batches(data, 5, states=[json.loads(json.dumps(states[step]))])
        np.testing.assert_array_equal(resumed, tokens[step : step + 5])


def test_text_bytes_are_those_of_the_documents(
    folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    data = opened(source_of(folders["json.gz"], tokenizer.path))
    stream = data.train.stream(1, 0, Share(), None)
    tokens, text_bytes = [], []
    for batch in islice(stream, 900):
        tokens.append(batch["tokens"])
        text_bytes.append(int(batch["text_bytes"][0]))
    stream.close()
    found = documents_in(unpacked(np.stack(tokens)), tokenizer)
    sizes = {
        document: len(text.encode())
        for document, text in zip(expected_documents(tokenizer), TEXTS, strict=True)
    }
    whole = sum(sizes[document] for document in found)
    last = max(sizes.values())
    assert whole <= sum(text_bytes) <= whole + last


def test_text_bytes_do_not_depend_on_where_a_run_resumed(source: C4Stream) -> None:
    data = opened(source)
    stream = data.train.stream(BATCH, 0, Share(), None)
    for _ in range(60):
        resumed = data.train.stream(BATCH, 0, Share(), [stream.state()])
        np.testing.assert_array_equal(next(stream)["text_bytes"], next(resumed)["text_bytes"])
        resumed.close()
    stream.close()


@pytest.mark.parametrize("count", [2, 4])
def test_processes_divide_an_epoch(source: C4Stream, tokenizer: Tokenizer, count: int) -> None:
    found: list[tuple[int, ...]] = []
    wanted = sorted(expected_documents(tokenizer))
    for index in range(count):
        data = opened(source)
        stream = data.train.stream(BATCH * count, 0, Share(index, count), None)
        documents = data.train.documents_of(0, Share(index, count))
        mine = [c for c, _ in islice(documents.after(documents.start()), 400)]
        epoch = epoch_length(mine, len(TEXTS), index, count)
        tokens = unpacked(np.stack([b["tokens"] for b in islice(stream, 150)]))
        stream.close()
        found += documents_in(tokens, tokenizer)[:epoch]
    assert sorted(found) == wanted


def epoch_length(cursors: list[dict], total: int, index: int, count: int) -> int:
    """How many documents a share has in its first epoch."""
    if "epoch" in cursors[0]:
        return sum(cursor["epoch"] == 0 for cursor in cursors)
    return len(range(index, total, count))


def test_another_number_of_processes_is_refused(source: C4Stream) -> None:
    data = opened(source)
    states = [batches(data, 3, Share(index, 2))[1][-1] for index in range(2)]
    resumed = [batches(data, 2, Share(index, 2), states)[0] for index in range(2)]
    straight = [batches(data, 5, Share(index, 2))[0][3:] for index in range(2)]
    np.testing.assert_array_equal(resumed, straight)
    for share in (Share(), Share(0, 4)):
        with pytest.raises(UserError, match="of 2 processes.*resume it on 2.*@Rows"):
            data.train.stream(BATCH * 4, 0, share, states)


def test_more_processes_than_files_are_refused(
    folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    data = opened(source_of(folders["json.gz"], tokenizer.path))
    with pytest.raises(UserError, match="4 files cannot feed 5 processes"):
        data.train.stream(BATCH * 5, 0, Share(0, 5), None)


def test_the_validation_set_is_whole_documents_with_exact_bytes(
    folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    for kind in KINDS:
        split = opened(
            source_of(folders[kind], tokenizer.path, validation_documents=None)
        ).validation
        batch = split.rows.read(range(len(split.rows)))
        assert batch["text_bytes"].sum() == split.text_bytes
        assert split.text_bytes == sum(len(text.encode()) for text in TEXTS[:30])
        weights = np.count_nonzero(batch["tokens"][:, 1:] != tokenizer.bos)
        ids = [tokenizer.encode(text) for text in TEXTS[:30]]
        assert weights == sum(len(document) + 1 for document in ids)
        first = opened(source_of(folders[kind], tokenizer.path, validation_documents=3)).validation
        assert first.text_bytes < split.text_bytes and first.identity != split.identity


@pytest.fixture(params=KINDS)
def damaged(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a folder of shards, to damage."""
    return Path(shutil.copytree(folders[request.param], tmp_path / "copy"))


def run_through(folder: Path, tokenizer: Tokenizer) -> None:
    """Opens a folder and reads more than an epoch."""
    data = opened(source_of(folder, tokenizer.path))
    stream = data.train.stream(BATCH, 0, Share(), None)
    try:
        for _ in islice(stream, 400):
            pass
    finally:
        stream.close()


@pytest.mark.parametrize("damage", ["cut short", "empty", "flipped", "missing"])
def test_a_damaged_shard_is_named(damaged: Path, tokenizer: Tokenizer, damage: str) -> None:
    shard = sorted(damaged.glob("c4-train*"))[1]
    content = bytearray(shard.read_bytes())
    if damage == "missing":
        shard.unlink()
    else:
        content[len(content) // 2] ^= 16
        cut = {"cut short": len(content) * 2 // 3, "empty": 0, "flipped": len(content)}[damage]
        shard.write_bytes(content[:cut])
    with pytest.raises(UserError) as caught:
        run_through(damaged, tokenizer)
    named = "00001 of the 4" if damage == "missing" else shard.name
    assert named in str(caught.value)


def test_any_flipped_bit_is_found_or_changes_no_token(damaged: Path, tokenizer: Tokenizer) -> None:
    shard = sorted(damaged.glob("c4-train*"))[2]
    whole = shard.read_bytes()
    used = [place for place, byte in enumerate(whole) if byte]  # ArrayRecord pads with zeros
    expected = tokens_of_an_epoch(damaged, tokenizer)
    rng = random.Random(0)
    found = 0
    for _ in range(40):
        flipped = bytearray(whole)
        flipped[rng.choice(used)] ^= 1 << rng.randrange(8)
        shard.write_bytes(flipped)
        try:
            assert tokens_of_an_epoch(damaged, tokenizer) == expected
        except UserError as error:
            assert shard.name in str(error)
            found += 1
    assert found > 30


def tokens_of_an_epoch(folder: Path, tokenizer: Tokenizer) -> bytes:
    data = opened(source_of(folder, tokenizer.path))
    return batches(data, 120)[0].tobytes()


def test_records_without_text_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_array_records(TEXTS, tmp_path, "train", 1)
    write_json_gz(TEXTS[:3], tmp_path, "validation", 1)
    shard = next(tmp_path.glob("c4-train*"))
    writer = ArrayRecordWriter(str(shard), "group_size:1")
    writer.write(b"no example")
    writer.close()
    with pytest.raises(UserError, match=shard.name):
        run_through(tmp_path, tokenizer)


def test_a_shard_that_tfds_counts_differently_is_named(
    folders: dict[str, Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders["ArrayRecord"], tmp_path / "copy"))
    shards = sorted(folder.glob("c4-train*"))
    lengths = [len(range(index, len(TEXTS), SHARDS)) for index in range(SHARDS)]
    splits = [{"name": "train", "shardLengths": [str(length) for length in lengths]}]
    (folder / "dataset_info.json").write_text(json.dumps({"splits": splits}))
    run_through(folder, tokenizer)
    shutil.copy(shards[0], shards[3])
    with pytest.raises(UserError, match=f"{shards[3].name} holds 49 records.*48"):
        run_through(folder, tokenizer)


def test_files_without_documents_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "c4-train.jsonl").write_text("\n \n")
    (tmp_path / "c4-validation.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match=r"c4-train.jsonl.* hold no document"):
        run_through(tmp_path, tokenizer)


def test_unfit_settings_are_named(folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    folder = folders["json.gz"]
    with pytest.raises(UserError, match="C4Stream.validation is not set"):
        opened(C4Stream(train=("a",), tokenizer="b"))
    with pytest.raises(UserError, match="C4Stream.train = .*nothing.* matches no file"):
        opened(C4Stream((f"{folder}/nothing*",), (f"{folder}/*",), tokenizer.path))
    mixed = (f"{folder}/c4-train*", f"{folders['ArrayRecord']}/c4-train*")
    with pytest.raises(UserError, match="mixes ArrayRecord"):
        opened(C4Stream(mixed, (f"{folder}/c4-validation*",), tokenizer.path))
    twice = (f"{folder}/c4-train*", f"{folder}/c4-train.00001-of-00004.json.gz")
    with pytest.raises(UserError, match="00001-of-00004.json.gz twice"):
        list_files(twice, "C4Stream.train")
    assert len(list_files((f"{folder}/c4-train.0000[12]*",), "C4Stream.train")) == 2


STREAMER = """
import hashlib, json, os, sys
from hyla_lm.input.share import Share
from hyla_lm.input.source import Reading
from hyla_lm.input.stream import C4Stream

folder, tokenizer, log, count = sys.argv[1:]
lines = open(log).read().splitlines() if os.path.exists(log) else []
lines = [json.loads(line) for line in lines if line.endswith("}")]
source = C4Stream((f"{folder}/c4-train.*",), (f"{folder}/c4-validation.*",), tokenizer)
data = source.open(16, 4, Reading())
stream = data.train.stream(4, 0, Share(), [lines[-1]["state"]] if lines else None)
with open(log, "w") as file:
    file.writelines(json.dumps(line) + "\\n" for line in lines)
    for _ in range(len(lines), int(count)):
        batch = next(stream)
        digest = hashlib.sha256(b"".join(batch[name].tobytes() for name in sorted(batch)))
        line = {"hash": digest.hexdigest(), "state": stream.state()}
        file.write(json.dumps(line) + "\\n")
        file.flush()
stream.close()
"""


def run_streamer(folder: Path, tokenizer: Tokenizer, log: Path, count: int) -> subprocess.Popen:
    arguments = [str(folder), tokenizer.path, str(log), str(count)]
    return subprocess.Popen([sys.executable, "-c", STREAMER, *arguments])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_killed_at_random_points_ends_like_one_never_stopped(
    folders: dict[str, Path], tokenizer: Tokenizer, tmp_path: Path, kind: str
) -> None:
    count, kills, rng = 3000, 10, random.Random(kind)
    assert run_streamer(folders[kind], tokenizer, tmp_path / "whole", count).wait() == 0
    log = tmp_path / "killed"
    lengths = sorted(rng.sample(range(1, count), kills))
    for length in lengths:
        process = run_streamer(folders[kind], tokenizer, log, count)
        wait_for_lines(log, length)
        process.send_signal(signal.SIGKILL)
        assert process.wait() in (-signal.SIGKILL, 0)
    assert run_streamer(folders[kind], tokenizer, log, count).wait() == 0
    assert log.read_text() == (tmp_path / "whole").read_text()


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
