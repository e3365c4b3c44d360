"""A trained run, opened again."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from hyla_lm.checkpoint.checkpoint import Damaged, near_run, read_checkpoints, restore_run
from hyla_lm.config.experiment import Experiment
from hyla_lm.config.gin_files import GinFile, Written
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel.sharding import shard_of
from hyla_lm.run.evaluation import Evaluation, evaluate
from hyla_lm.run.folder import HOME, read_object
from hyla_lm.run.program import Program, identity, make_program
from hyla_lm.storage import as_path, read_whole
from hyla_lm.tasks.protocol import Task


@dataclass(frozen=True)
class RestoredRun:
    """The program and parameters of a checkpoint."""

    program: Program[Task]
    params: Any
    step: int

    def evaluation(self, before_batch: Callable[[], None] = lambda: None) -> Evaluation:
        """Metrics over the whole evaluation sets, and losses of documents if there are any.

        Raises Damaged for a metric that is no number.
        """
        shard = shard_of(self.program.mesh, self.program.experiment.train.batch_size)
        with jax.set_mesh(self.program.mesh):
            found = evaluate(self.program, self.params, self.step, shard, True, before_batch)
        if bad := [name for name, value in found.metrics.items() if not math.isfinite(value)]:
            raise Damaged(f"step {self.step} gives no number for {bad[0]}: take another step.")
        return found


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
    with read_checkpoints(as_path(path), path) as checkpoints:
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
    return make_program(experiment_of(path, gin_files, bindings, trust_imports), devices)


def own_config(path: str, trust_imports: bool = False) -> Written | None:
    """The config.gin that a run wrote, if there is one."""
    run = as_path(path)
    content = read_whole(run / "config.gin")
    if content is None:
        return None
    home = str(read_object(run / HOME).get("folder", ""))
    return Written(str(run / "config.gin"), content.decode(errors="replace"), trust_imports, home)


def experiment_of(
    path: str, gin_files: Sequence[GinFile], bindings: Sequence[str], trust_imports: bool
) -> Experiment:
    """The settings of the run in a folder, by its own config.gin or by gin files."""
    own = own_config(path, trust_imports)
    if own is None:
        raise UserError(f"{path or 'an empty path'} holds no run: {near_run(as_path(path))}.")
    return read_experiment(gin_files or [own], bindings)
