"""A trained run, opened again to evaluate, sample or score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from hyla_lm.checkpoint.checkpoint import read_checkpoints, restore_run
from hyla_lm.config.gin_files import Written
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel import processes
from hyla_lm.parallel.sharding import shard_of
from hyla_lm.run.evaluation import Evaluation, evaluate
from hyla_lm.run.program import Program, identity, make_program
from hyla_lm.storage import as_path, read_whole
from hyla_lm.tasks.language_model import LanguageModelTask
from hyla_lm.tasks.protocol import Task
from hyla_lm.tasks.sampling import Sample, Sampler, Sampling
from hyla_lm.tasks.scoring import Score, score


@dataclass(frozen=True)
class RestoredRun:
    """The program and parameters of a checkpoint."""

    program: Program[Task]
    params: Any
    step: int

    def evaluate(self) -> dict[str, float]:
        """The step, and metrics over the whole evaluation sets."""
        return {"step": self.step, **self.evaluation().metrics}

    def evaluation(self) -> Evaluation:
        """`evaluate`, with the losses of documents where the task has any."""
        shard = shard_of(self.program.mesh, self.program.experiment.train.batch_size)
        with jax.set_mesh(self.program.mesh):
            return evaluate(self.program, self.params, self.step, shard, is_final=True)

    def sample(self, prompt: str, sampling: Sampling) -> str:
        """A continuation of the prompt; raises UserError if the run is no language model."""
        return self.sampler.sample([prompt], sampling)[0].text

    def sample_all(
        self, prompts: Sequence[str], sampling: Sampling, samples: int = 1
    ) -> list[Sample]:
        """So many continuations of each prompt, sampled together, in the order of the prompts."""
        return self.sampler.sample(prompts, sampling, samples)

    def stream(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """The text of a continuation in pieces, as they come."""
        return self.sampler.stream(prompt, sampling)

    def score(self, text: str) -> Score:
        """The probability of a text; raises UserError if the run is no language model."""
        task = self._language_model
        model, length = self.program.model, task.sequence_length
        return score(model, self._local_params, task.tokenizer, text, length)

    @cached_property
    def sampler(self) -> Sampler:
        """What samples from the run; raises UserError if it is no language model."""
        task = self._language_model
        model, length = self.program.model, task.sequence_length
        return Sampler(model, self._local_params, task.tokenizer, length)

    @property
    def _language_model(self) -> LanguageModelTask:
        task = self.program.task
        if not isinstance(task, LanguageModelTask):
            raise UserError("--workdir holds no language model: give the folder of one.")
        return task

    @cached_property
    def _local_params(self) -> Any:
        """The parameters on one device of this process."""
        return jax.device_put(processes.on_host(self.params))


def open_run(
    path: str,
    step: int | None = None,
    gin_files: Sequence[str] = (),
    bindings: Sequence[str] = (),
    devices: Sequence[jax.Device] | None = None,
    trust_imports: bool = False,
) -> RestoredRun:
    """Opens a checkpoint of a run, by default the newest, on these devices or on all.

    Raises UserError for a folder without a run or that checkpoint, for gin files of another run,
    and for a config.gin of the run that imports modules of others, unless `trust_imports`.
    """
    program = program_of(path, gin_files, bindings, devices, trust_imports)
    with read_checkpoints(as_path(path), f"--workdir={path}") as checkpoints:
        step = checkpoints.choose(step)
        state = restore_run(checkpoints, step, identity(program), program.abstract_state)[0]
    return RestoredRun(program, state.params, step)


def program_of(
    path: str,
    gin_files: Sequence[str] = (),
    bindings: Sequence[str] = (),
    devices: Sequence[jax.Device] | None = None,
    trust_imports: bool = False,
) -> Program[Task]:
    """The program of the run in a folder, by its own config.gin or by gin files."""
    workdir = as_path(path)
    own = read_whole(workdir / "config.gin")
    if own is None:
        raise UserError(f"--workdir={path} holds no run: train one first.")
    written = Written(str(workdir / "config.gin"), own.decode(errors="replace"), trust_imports)
    return make_program(read_experiment(gin_files or [written], bindings), devices)
