"""What a run's folder tells of it: settings, and the losses of documents by step and budget."""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

import numpy as np
from etils import epath

import hyla_lm.config.experiment  # noqa: F401  makes the classes and their defaults known
from hyla_lm.config.declare import REGISTRY
from hyla_lm.config.gin_files import settings_of_text
from hyla_lm.config.gin_text import GIN_ERRORS, Reference
from hyla_lm.errors import UserError
from hyla_lm.run.evaluation import DocumentLosses, documents_file, read_documents
from hyla_lm.run.folder import EVALUATOR, read_lines
from hyla_lm.run.summary import STEP_SECONDS, is_window, seconds_per_step
from hyla_lm.storage import as_path, read_whole

BUDGETS = {
    "steps": "steps",
    "tokens": "training tokens",
    "flops": "training FLOPs by formula",
    "seconds": "seconds of stepping",
}
# The file keeps sums of float32 and the line a mean of float32: both round at 6e-8, over chunks.
SAME_LOSS = 1e-4


@dataclass(frozen=True)
class ReadRun:
    """A run with saved losses: its settings by name, its lines, and its evaluations by step."""

    path: str
    settings: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    evaluations: Sequence[DocumentLosses]

    @property
    def name(self) -> str:
        return PurePath(self.path).name

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.evaluations[-1].facts

    def budgets(self, at: str) -> np.ndarray:
        """What each evaluation's step had cost; raises UserError where seconds are not known."""
        steps = np.array([evaluation.step for evaluation in self.evaluations], np.float64)
        if at == "steps":
            return steps
        if at == "seconds":
            return np.array([self._seconds(step) for step in steps])
        tokens = [evaluation.facts["tokens_per_step"] for evaluation in self.evaluations]
        spent = np.cumsum(np.diff(steps, prepend=0) * tokens)
        return spent if at == "tokens" else spent * self.facts["flops_per_token"]

    def _seconds(self, step: float) -> float:
        """Seconds of stepping until then; a window that was not timed took the mean."""
        mean = seconds_per_step(self.lines)
        if not mean:
            raise UserError(
                f"{self.path} has no perf/step_seconds in metrics.jsonl: give another --at."
            )
        windows = [line for line in self.lines if is_window(line)]
        ends = [0, *(line["step"] for line in windows)]
        each = [line.get(STEP_SECONDS, mean) for line in windows]
        spent = np.concatenate([[0], np.cumsum(np.diff(ends) * each)])
        known = min(bisect.bisect_right(ends, step), len(ends)) - 1
        after = each[known] if known < len(each) else mean
        return float(spent[known] + (step - ends[known]) * after)


def read_run(workdir: str) -> ReadRun:
    """A run's folder, with the evaluations that it kept; raises UserError for no run."""
    path = as_path(workdir)
    config = read_whole(path / "config.gin")
    if config is None:
        raise UserError(f"{workdir} holds no run: give folders of trained runs.")
    lines = read_lines(path)
    kept = {**_kept(path / EVALUATOR), **_kept(path)}
    settings = read_settings(config.decode(errors="replace"), str(path / "config.gin"))
    return ReadRun(str(path), settings, lines, [kept[step] for step in sorted(kept)])


def _kept(folder: epath.Path) -> dict[int, DocumentLosses]:
    """The losses of each evaluation of which a line stands in a folder's metrics.jsonl."""
    evaluated: dict[int, dict[str, Any]] = {}
    for line in filter(_is_evaluation, read_lines(folder)):
        evaluated.setdefault(line["step"], {}).update(line)
    found = {step: _losses_of(folder, line) for step, line in evaluated.items()}
    return {step: losses for step, losses in found.items() if losses is not None}


def _is_evaluation(line: Mapping[str, Any]) -> bool:
    return any(tag.startswith("validation/") for tag in line)


def _losses_of(folder: epath.Path, line: Mapping[str, Any]) -> DocumentLosses | None:
    """The losses of the line's evaluation; raises UserError for a file of another one."""
    found = read_documents(folder, line["step"])
    for name, documents in (found.sets if found else {}).items():
        logged = line.get(f"validation/{name}_loss_nats" if name else "validation/loss_nats")
        loss = documents.nats_N.sum() / max(documents.tokens_N.sum(), 1)
        if logged is not None and not abs(loss - logged) <= SAME_LOSS * abs(logged):
            raise UserError(
                f"{folder / documents_file(line['step'])} is not of the evaluation in "
                "metrics.jsonl: delete it, and that step is left out."
            )
    return found


def read_settings(text: str, place: str) -> dict[str, str]:
    """The settings of a run's config.gin by name, macros resolved; nothing is imported."""
    try:
        found = settings_of_text(text)
    except GIN_ERRORS as error:
        raise UserError(f"{place} is no gin text: put back the file that the run wrote.") from error
    macros = {key.name: value for key, value in found.items() if not key.field}
    return {str(key): repr(_resolved(value, macros)) for key, value in found.items() if key.field}


def _resolved(value: Any, macros: Mapping[str, Any]) -> Any:
    if isinstance(value, Reference):
        return _resolved(macros[value.name], macros) if value.name in macros else value
    if isinstance(value, tuple | list):
        return type(value)(_resolved(one, macros) for one in value)
    return value


def value_of(settings: Mapping[str, str], name: str) -> str:
    """A setting as gin writes it; one that is not written has its default, where that is known."""
    if name in settings:
        return settings[name]
    cls, _, field = name.rpartition("/")[2].rpartition(".")
    known = (
        {one.name: repr(one.default) for one in fields(REGISTRY[cls])} if cls in REGISTRY else {}
    )
    return known.get(field, "not set")
