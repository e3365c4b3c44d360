"""Opens a trained model: a checkpoint of a run, or an exported folder."""

from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from hyla_lm.checkpoint.checkpoint import check_same_run, read_checkpoints
from hyla_lm.errors import UserError
from hyla_lm.export.folder import exported_entries, read_folder
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.input.prepared import TOKENIZER
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.mesh import AXES
from hyla_lm.run.program import checked_mesh, identity_with, lay_out
from hyla_lm.run.restored import experiment_of
from hyla_lm.storage import as_path, exists
from hyla_lm.tasks.language_model import LanguageModel, NextToken

# A run is opened on one device, whatever mesh trained it.
ONE_DEVICE = tuple(f"MeshConfig.{axis} = 1" for axis in AXES)


def load(
    path: str,
    step: int | None = None,
    trust_imports: bool = False,
    gin_files: Sequence[str] = (),
    bindings: Sequence[str] = (),
) -> LoadedModel:
    """See hyla_lm.load; gin files replace the run's own, and bindings change it."""
    if entries := exported_entries(path):
        model = read_folder(path, entries)
        if step not in (None, model.step) or gin_files or bindings:
            raise UserError(
                f"{path} was exported at step {model.step}: ask for no other, and give no gin "
                "setting, which changes nothing there."
            )
        return model
    experiment = experiment_of(path, gin_files, [*bindings, *ONE_DEVICE], trust_imports)
    task, run = experiment.train.task, as_path(path)
    if not isinstance(task, LanguageModel):
        raise UserError(f"{path} holds no language model (TrainConfig.task): load one that is.")
    with read_checkpoints(run, path) as checkpoints:
        step = checkpoints.choose(step)
        meta = checkpoints.meta(step)
        objective, tokenizer, data = _without_data(task, run, meta["identity"]["data"])
        program = lay_out(experiment, objective, checked_mesh(experiment, jax.local_devices()[:1]))
        check_same_run(meta["identity"], identity_with(experiment, data), run)
        params = checkpoints.restore_parameters(step, program.abstract_state.params, meta)
    return LoadedModel(program.model, params, tokenizer, objective.sequence_length, step)


def _without_data(
    task: LanguageModel, run: epath.Path, data: dict[str, Any]
) -> tuple[NextToken, Tokenizer, dict[str, Any]]:
    """What is computed, the tokenizer, and the identity of the data; `data` is the one saved.

    A run of a version that kept no tokenizer needs its data.
    """
    tokenizer = Tokenizer(str(run / TOKENIZER))
    if not exists(tokenizer.path):
        prepared = task.prepare_task(1)
        return prepared, prepared.tokenizer, prepared.identity()
    if tokenizer.sha256 != data["tokenizer"]:
        raise UserError(
            f"{tokenizer.path} is not the tokenizer that this run was trained with: put that back."
        )
    return task.objective_with(tokenizer), tokenizer, data
