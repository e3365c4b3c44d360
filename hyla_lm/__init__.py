"""hyla_lm: decoder-only language models whose attention is a hypernetwork.

`load` opens what was trained: `hyla_lm.load("runs/mine").generate("Once upon")`.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyla_lm.export.loaded_model import LoadedModel

__version__ = "0.1.0"
__all__ = ["load"]


def load(
    path: str | os.PathLike[str], step: int | None = None, trust_imports: bool = False
) -> "LoadedModel":
    """The model of a run's folder or of a folder that `hyla-lm export` made, ready to use.

    It has `generate`, `logits`, `latent_codes`, `tokenizer`, `config` and `params`. A run gives its
    newest checkpoint, or that of `step`; its tokenizer and rows must be where its config.gin says.
    `trust_imports` lets that config.gin import modules that are not of this project. Raises
    hyla_lm.config.UserError, one sentence, for a folder that cannot be opened.
    """
    from hyla_lm.export.load import load as open_model  # JAX is imported when it is needed

    return open_model(str(path), step, trust_imports)
