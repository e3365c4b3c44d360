"""The texts of validation documents, decoded from a run's rows."""

from collections.abc import Collection

import numpy as np

from hyla_lm.config.gin_files import Written
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.storage import as_path, read_whole
from hyla_lm.tasks.language_model import LanguageModelTask
from hyla_lm.tools.compare.runs import ReadRun

LONGEST = 400  # characters
MOST_TOKENS = 400  # of which a piece has at least one character, but for bytes

Place = tuple[int, int]


def texts_of(
    run: ReadRun, set_name: str, places: Collection[Place], trust_imports: bool
) -> dict[Place, str]:
    """The beginning of each document, by the row and place where it begins.

    Raises UserError where rows or tokenizer are not where the run's config.gin says.
    """
    path = as_path(run.path) / "config.gin"
    text = (read_whole(path) or b"").decode(errors="replace")
    experiment = read_experiment([Written(str(path), text, trust_imports)], [])
    size = experiment.train.batch_size
    assert experiment.train.task is not None
    task = experiment.train.task.prepare_task(size)
    if not isinstance(task, LanguageModelTask):
        raise UserError(f"{run.path} holds no language model: give runs of one.")
    ahead = -(-MOST_TOKENS // task.sequence_length)
    wanted = {row + more for row, _ in places for more in range(ahead + 1)}
    target_T: dict[int, np.ndarray] = {}
    for batch in task.evaluation_sets(BatchShard(size), True)[set_name]:
        for row, tokens in zip(batch["row"], batch["tokens"], strict=True):
            if int(row) in wanted:
                target_T[int(row)] = tokens[1:]
    return {place: _text(task, target_T, place, ahead) for place in places}


def _text(
    task: LanguageModelTask, target_T: dict[int, np.ndarray], place: Place, ahead: int
) -> str:
    row, start = place
    rows = [target_T[r] for r in range(row, row + ahead + 1) if r in target_T]
    tokens = np.concatenate(rows)[max(start, 0) :][:MOST_TOKENS]
    ends = np.flatnonzero((tokens == task.tokenizer.eos) | (tokens == task.tokenizer.bos))
    is_cut = len(ends) == 0
    text = task.tokenizer.decode(tokens[: None if is_cut else ends[0]].tolist())
    return f"{text[:LONGEST]}…" if is_cut or len(text) > LONGEST else text
