"""The registered tasks, a mixture of them, and training on them."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.cli.main import main
from hyla_lm.data.seqio_settings import SeqioTask, SeqioTasks
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.errors import UserError
from hyla_lm.input.source import Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from tests.seqio.conftest import C4, TRAIN

pytestmark = pytest.mark.seqio
LENGTH, BATCH = 16, 4


MIXTURE = """
import seqio
seqio.MixtureRegistry.add("mixed", [("c4_lm", 1.0)])
"""


@pytest.mark.parametrize("task", ["c4_lm", "mixed"])
def test_a_task_streams_and_resumes_exactly(
    c4: C4, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_mixture.py").write_text(MIXTURE)
    tasks = c4.tasks(modules=("my_mixture",))
    data = SeqioTask(task, tasks, c4.tokenizer.path).open(LENGTH, BATCH, Reading())
    stream = data.train.stream(BatchShard(BATCH), None)
    tokens, states = [], [stream.get_state()]
    for batch in islice(stream, 60):
        tokens.append(batch["tokens"])
        states.append(stream.get_state())
    stream.close()
    for step in (0, 1, 17, 55):
        resumed = data.train.stream(BatchShard(BATCH), [states[step]])
        for expected in tokens[step : step + 3]:
            np.testing.assert_array_equal(next(resumed)["tokens"], expected)
        resumed.close()


def test_processes_divide_a_task(c4: C4) -> None:
    import seqio

    from hyla_lm.data.seqio_documents import TaskDocuments

    task = TaskDocuments("c4_lm", "train", c4.tokenizer, c4.tasks())
    shares = (task.documents(seqio.ShardInfo(i, 2), epochs=1, shuffle_seed=0) for i in range(2))
    found = [(tuple(ids.tolist()), size) for share in shares for ids, size in share]
    wanted = [(tuple(c4.tokenizer.encode(text)), len(text.encode())) for text in TRAIN]
    assert sorted(found) == sorted(wanted) and found != wanted


def test_a_run_trains_on_a_task(c4: C4, tmp_path: Path, tiny_gin: Path) -> None:
    bindings = [
        "import hyla_lm.data.seqio_documents",
        "LanguageModel.data = @SeqioTask()",
        "SeqioTask.name = 'c4_lm'",
        "SeqioTask.tasks = @SeqioTasks()",
        f"SeqioTask.tokenizer = '{c4.tokenizer.path}'",
        f"SeqioTasks.tfds_folder = '{c4.tfrecord}'",
    ]
    gin_file = tmp_path / "task.gin"
    gin_file.write_text("\n".join([f"include '{tiny_gin}'", *bindings]) + "\n")
    arguments = ["train", f"--gin_file={gin_file}", f"--workdir={tmp_path / 'run'}"]
    assert main(arguments) == 0
    assert (tmp_path / "run" / "summary.json").is_file()


MY_TASKS = """
import seqio
feature = seqio.Feature(seqio.SentencePieceVocabulary("{vocabulary}"))
source = seqio.get_mixture_or_task("c4_lm").source
seqio.TaskRegistry.add("mine", source=source, output_features={{"targets": feature}})
"""


def test_what_does_not_fit_is_named(
    c4: C4, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hyla_lm.data.seqio_documents import TaskDocuments

    other = tmp_path / "other.model"
    train_tokenizer(TRAIN, 300, other)
    with pytest.raises(UserError, match="no task or mixture 'c5_lm'"):
        TaskDocuments("c5_lm", "train", c4.tokenizer, c4.tasks()).check()
    with pytest.raises(UserError, match="cannot find its split 'test'"):
        TaskDocuments("c4_lm", "test", c4.tokenizer, c4.tasks()).check()
    with pytest.raises(UserError, match="no_such_module"):
        absent = SeqioTasks(modules=("no_such_module",))
        TaskDocuments("c4_lm", "train", c4.tokenizer, absent).check()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_tasks.py").write_text(MY_TASKS.format(vocabulary=other))
    mine = c4.tasks(modules=("my_tasks",))
    with pytest.raises(UserError, match="another vocabulary"):
        TaskDocuments("mine", "train", c4.tokenizer, mine).check()
    assert TaskDocuments("mine", "train", Tokenizer(str(other)), mine).default_shards() == 4


def test_the_command_prepares_a_task(
    c4: C4, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--tokenizer={c4.tokenizer.path}", f"--output={tmp_path / 'rows'}", "--workers=2"]
    options += ["--sequence_length=16", f"--gin.SeqioTasks.tfds_folder='{c4.tfrecord}'"]
    assert main(["data", "prepare", "--task=c4_lm", *options]) == 0
    assert f"{len(TRAIN)} documents" in capsys.readouterr().out
