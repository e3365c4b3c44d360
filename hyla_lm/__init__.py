"""hyla_lm: decoder-only language models whose attention is a hypernetwork.

`load` opens what was trained: `hyla_lm.load("runs/mine").generate("Once upon")`. `compare` says
how runs differ.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyla_lm.export.loaded_model import LoadedModel
    from hyla_lm.tools.compare.comparison import Comparison

__version__ = "0.2.0"
__all__ = ["compare", "load"]


def load(
    path: str | os.PathLike[str], step: int | None = None, trust_imports: bool = False
) -> "LoadedModel":
    """The model of a run's folder or of a folder that `hyla-lm export` made, ready to use.

    It has `generate`, `logits`, `latent_codes`, `tokenizer`, `config` and `params`. A run gives its
    newest checkpoint, or that of `step`; nothing outside of its folder is needed.
    `trust_imports` lets that config.gin import modules that are not of this project. Raises
    hyla_lm.errors.UserError, one sentence, for a folder that cannot be opened.
    """
    from hyla_lm.export.load import load as open_model  # JAX is imported when it is needed

    return open_model(str(path), step, trust_imports)


def compare(
    runs: Sequence[str | os.PathLike[str]],
    at: str = "steps",
    set_name: str | None = None,
    baseline: str | None = None,
) -> "Comparison":
    """How the runs of these folders differ on the same validation documents, as plain data.

    Runs that differ only in the seed are a group. Groups are compared in pairs, or all with the
    `baseline`, at the largest budget that all runs reached: `at` is "steps", "tokens", "flops" or
    "seconds". `set_name` is a validation set, by default the first. The result has `groups`,
    `pairs` and `notes`, and `as_dict()`. Raises hyla_lm.errors.UserError, one sentence, for runs
    that cannot be compared.
    """
    from hyla_lm.tools.compare.comparison import compare as compare_runs

    paths = [str(run) for run in runs]
    return compare_runs(paths, at, set_name, baseline)
