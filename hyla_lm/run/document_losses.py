"""The loss of each document of an evaluation, and the file of a run that keeps it.

Checkpoints of most steps are deleted, so what `hyla-lm compare` needs is kept when it is measured.
"""

import io
import json
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.row_documents import Documents, joined, parts_of_rows, together
from hyla_lm.metrics import Metrics
from hyla_lm.package import git_revision
from hyla_lm.parallel import multihost
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.run.program import Program, versions
from hyla_lm.run.summary import flops_per_token
from hyla_lm.storage import PathLike, as_path, read_whole
from hyla_lm.tasks.language_model import LanguageModelTask
from hyla_lm.tasks.protocol import Batch, HostBatch, Task

FOLDER = "documents"
TRAIN_ROWS = "train rows"
FLOATS = {"nats_N", "bytes_N"}
# What numpy, zipfile and JSON raise of a file that is something else or was cut short.
NO_LOSSES = (
    *(ValueError, KeyError, TypeError, AttributeError, OSError, EOFError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RecursionError),
)


@dataclass(frozen=True)
class DocumentLosses:
    """The documents of each evaluation set at a step, and what tells whether runs can be compared.

    `facts` are the identity of tokenizer and validation rows, tokens a step, FLOPs a token, and
    what computed.
    """

    step: int
    sets: dict[str, Documents]
    facts: dict[str, Any]

    def to_bytes(self) -> bytes:
        """The content of the file: arrays of 32 bits, compressed."""
        columns: dict[str, Any] = {
            f"{name}/{field.name}": getattr(documents, field.name).astype(
                np.float32 if field.name in FLOATS else np.int32
            )
            for name, documents in self.sets.items()
            for field in fields(documents)
        }
        facts = json.dumps({**self.facts, "step": self.step, "sets": list(self.sets)})
        file = io.BytesIO()
        np.savez_compressed(file, facts=np.array(facts), **columns)
        return file.getvalue()


def rows_of(set_name: str) -> str:
    """What the rows of a validation set are called in `facts`."""
    return f"validation rows {set_name}".rstrip()


def path_of(step: int) -> str:
    """The file of a step in a run's folder."""
    return f"{FOLDER}/{step}.npz"


def read(workdir: PathLike, step: int) -> DocumentLosses | None:
    """What a run kept of a step; None if it kept nothing. Raises UserError for a damaged file."""
    path = as_path(workdir) / path_of(step)
    content = read_whole(path)
    if content is None:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            facts = json.loads(str(arrays["facts"]))
            names = [field.name for field in fields(Documents)]
            sets = {
                name: Documents(*(_widened(arrays[f"{name}/{column}"]) for column in names))
                for name in facts.pop("sets")
            }
        return DocumentLosses(facts.pop("step"), sets, facts)
    except NO_LOSSES as error:
        raise UserError(f"{path} is damaged: delete it, or restore the file.") from error


class Recorder:
    """Takes down the loss of each document while evaluation sets are gone through.

    Evaluate `watched` sets with `step`. Where the task tells no losses by token, they are the sets
    and the evaluation step of the program, and there is nothing to keep.
    """

    def __init__(self, program: Program[Task], shard: BatchShard):
        self._program, self._shard = program, shard
        self._step = program.token_step
        self._read: deque[tuple[str, HostBatch]] = deque()
        self._running: tuple[str, HostBatch, jax.Array] | None = None
        self._parts: dict[str, list[Documents]] = {}

    def watched(self, sets: Mapping[str, Iterable[HostBatch]]) -> Mapping[str, Iterable[HostBatch]]:
        """The sets, whose batches are remembered until their losses are known."""
        if self._step is None:
            return sets
        return {name: self._remembering(name, batches) for name, batches in sets.items()}

    def _remembering(self, name: str, batches: Iterable[HostBatch]) -> Iterator[HostBatch]:
        for batch in batches:
            self._read.append((name, batch))
            yield batch

    def step(self, params: Any, batch: Batch) -> Metrics:
        """Starts the evaluation of the next batch, and takes down the one before."""
        if self._step is None:
            return self._program.evaluation_step(params, batch)
        metrics, nats_BxT = self._step(params, batch)
        self._take_down()
        self._running = (*self._read.popleft(), nats_BxT)
        return metrics

    def losses(self, step: int) -> DocumentLosses | None:
        """What was found, of all processes; each of them must call this."""
        if self._step is None:
            return None
        self._take_down()
        mine = {name: together(parts).as_lists() for name, parts in self._parts.items()}
        everyone = multihost.gather_shards(mine, self._shard)
        sets = {name: joined([_from_lists(one[name]) for one in everyone]) for name in mine}
        return DocumentLosses(step, sets, facts_of(self._program))

    def _take_down(self) -> None:
        if self._running is None:
            return
        name, batch, nats_BxT = self._running
        self._running = None
        tokenizer = _language_model(self._program.task).tokenizer
        parts = parts_of_rows(
            batch["tokens"],
            batch["text_bytes"],
            batch["row"],
            _rows_here(nats_BxT),
            tokenizer.piece_bytes,
            tokenizer.bos,
        )
        self._parts.setdefault(name, []).append(parts)


def facts_of(program: Program[Task]) -> dict[str, Any]:
    """What is true of every evaluation of a run."""
    task = _language_model(program.task)
    named = {rows_of(name): identity for name, identity in task.named_sets().items()}
    identity = {k: v for k, v in task.identity().items() if k != TRAIN_ROWS} | named
    device = f"{program.mesh.size} x {program.mesh.devices.flat[0].device_kind}"
    return {
        "identity": identity,
        "tokens_per_step": program.tokens_per_step,
        "flops_per_token": flops_per_token(program),
        "environment": {"device": device, "git_revision": git_revision(), **versions()},
    }


def _widened(column: np.ndarray) -> np.ndarray:
    return column.astype(np.float64 if column.dtype.kind == "f" else np.int64)


def _from_lists(columns: list[list[float]]) -> Documents:
    return Documents(*map(np.asarray, columns))


def _language_model(task: Task) -> LanguageModelTask:
    assert isinstance(task, LanguageModelTask)
    return task


def _rows_here(array_BxT: jax.Array) -> np.ndarray:
    """The rows of a global array that this process holds, in order, each once."""
    parts = {shard.index[0].start or 0: shard.data for shard in array_BxT.addressable_shards}
    return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)])
