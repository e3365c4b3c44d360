"""Metrics of a run over its evaluation sets, and the loss of each of their documents.

Metrics are sums and counts in float64, divided once. Checkpoints of most steps are deleted, so the
losses that `hyla-lm compare` needs are written to the run's folder when they are measured.
"""

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import jax
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.packing import Documents, concatenated, joined, parts_of_rows
from hyla_lm.metrics import HostMetrics, Metrics, add, means, to_host
from hyla_lm.package import git_revision
from hyla_lm.parallel import processes
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.program import Program, versions
from hyla_lm.run.summary import flops_per_token
from hyla_lm.storage import PathLike, as_path, read_whole
from hyla_lm.tasks.language_model import LanguageModelTask
from hyla_lm.tasks.protocol import HostBatch, Task

FILE = "documents/{step}.npz"
TRAIN_ROWS = "train rows"
FLOATS = {"nats_N", "bytes_N"}


@dataclass(frozen=True)
class DocumentLosses:
    """The documents of each evaluation set at a step, and what shows if runs can be compared.

    `facts` are the identity of tokenizer and validation rows, tokens per step, FLOPs per token, and
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


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a step, and where the task has losses by token the losses of documents."""

    step: int
    metrics: dict[str, float]
    documents: DocumentLosses | None

    def write_documents(self, folder: RunFolder) -> None:
        """Writes the file of the losses, if there are any; only process 0 does."""
        if self.documents is not None and processes.is_process_0():
            folder.write(FILE.format(step=self.step), self.documents.to_bytes())


def evaluate(
    program: Program[Task],
    params: Any,
    step: int,
    shard: BatchShard,
    is_final: bool,
    before_batch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Evaluates the parameters of a step, on the whole sets if it is the final evaluation.

    Metrics are named by the set. All processes must call it, under the mesh. `before_batch` may
    raise an error, which ends the evaluation.
    """
    metrics: dict[str, float] = {}
    parts: dict[str, Documents] = {}
    for name, batches in program.task.evaluation_sets(shard, is_final).items():
        sums, documents = _evaluate_set(program, params, batches, before_batch)
        prefix = f"{name}_" if name else ""
        logged = program.task.logged_metrics(means(sums))
        metrics |= {f"{prefix}{key}": value for key, value in logged.items()}
        if documents:
            parts[name] = concatenated(documents)
    if program.token_step is None:
        return Evaluation(step, metrics, None)
    everyone = processes.gather_shards({name: d.as_lists() for name, d in parts.items()}, shard)
    sets = {
        name: joined([Documents(*map(np.asarray, lists[name])) for lists in everyone])
        for name in parts
    }
    return Evaluation(step, metrics, DocumentLosses(step, sets, _facts(program)))


def _evaluate_set(
    program: Program[Task],
    params: Any,
    batches: Iterable[HostBatch],
    before_batch: Callable[[], None],
) -> tuple[HostMetrics, list[Documents]]:
    """Summed metrics, and the documents of this process's rows.

    Each batch is read from the device when the next is there, so that the device works meanwhile.
    """
    total: HostMetrics = {}
    documents: list[Documents] = []
    started: tuple[HostBatch, Metrics, jax.Array | None] | None = None
    for batch in chain(batches, [None]):
        before, started = started, None
        if batch is not None:
            before_batch()
            on_device = program.to_devices(batch)
            if program.token_step is None:
                started = batch, program.evaluation_step(params, on_device), None
            else:
                started = batch, *program.token_step(params, on_device)
        if before is not None:
            done, metrics, nats_BxT = before
            total = add(total, to_host(metrics))
            if nats_BxT is not None:
                documents.append(_documents_of(program.task, done, nats_BxT))
    return total, documents


def _documents_of(task: Task, batch: HostBatch, nats_BxT: jax.Array) -> Documents:
    """The parts of documents in this process's rows, each row once."""
    tokenizer = _language_model(task).tokenizer
    parts = {shard.index[0].start or 0: shard.data for shard in nats_BxT.addressable_shards}
    rows_here_BxT = np.concatenate([np.asarray(parts[start]) for start in sorted(parts)])
    return parts_of_rows(
        batch["tokens"],
        batch["text_bytes"],
        batch["row"],
        rows_here_BxT,
        tokenizer.piece_bytes,
        tokenizer.bos,
    )


def _facts(program: Program[Task]) -> dict[str, Any]:
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


def rows_of(set_name: str) -> str:
    """What the rows of a validation set are called in `facts`."""
    return f"validation rows {set_name}".rstrip()


def read_documents(workdir: PathLike, step: int) -> DocumentLosses | None:
    """The losses that a run wrote of a step, or None; raises UserError for a damaged file."""
    path = as_path(workdir) / FILE.format(step=step)
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
    except Exception as error:  # numpy, zipfile and JSON raise errors of many classes
        raise UserError(f"{path} is damaged: delete it, or restore the file.") from error


def _widened(column: np.ndarray) -> np.ndarray:
    return column.astype(np.float64 if column.dtype.kind == "f" else np.int64)


def _language_model(task: Task) -> LanguageModelTask:
    assert isinstance(task, LanguageModelTask)
    return task
