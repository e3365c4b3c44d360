"""Opens a trained model: a checkpoint of a run, or an exported folder."""

from collections.abc import Sequence

import jax

from hyla_lm.errors import UserError
from hyla_lm.export.folder import exported_entries, read_folder
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.parallel.mesh import AXES
from hyla_lm.run.restored import open_run
from hyla_lm.tasks.language_model import LanguageModelTask

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
    one, bound = jax.local_devices()[:1], [*bindings, *ONE_DEVICE]
    run = open_run(path, step, gin_files, bound, one, trust_imports)
    task = run.program.task
    if not isinstance(task, LanguageModelTask):
        raise UserError(f"{path} holds no language model (TrainConfig.task): load one that is.")
    return LoadedModel(
        run.program.model, run.params, task.tokenizer, task.sequence_length, run.step
    )
