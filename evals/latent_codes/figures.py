"""A picture of latent codes in the plane."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from sklearn.manifold import TSNE
from sklearn.preprocessing import StandardScaler

from hyla_lm.evals.latent_codes.decoding import effective_rank
from hyla_lm.evals.pictures import plt, save
from hyla_lm.evals.tasks.sraven_rules import RULES

MAX_PERPLEXITY = 30.0
TSNE_EXAMPLES = 1000


def draw_tsne(
    path: Path, code_NxBxC: np.ndarray, colours: Mapping[str, np.ndarray], seed: int
) -> None:
    """Draws codes of each layer in the plane: a row for each layer, a column for each colouring."""
    code_NxBxC = code_NxBxC[:, :TSNE_EXAMPLES]
    rows, columns = len(code_NxBxC), len(colours)
    size = (4.4 * columns, 3.2 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for layer, code_BxC in enumerate(code_NxBxC):
        place_Bx2 = embed(code_BxC, seed)
        for panel, (title, value_B) in zip(axes[layer], colours.items(), strict=True):
            points = panel.scatter(*place_Bx2.T, s=4, c=value_B[: len(code_BxC)], linewidths=0)
            bar = figure.colorbar(points, ax=panel)
            if title == "rule":
                bar.set_ticks(range(len(RULES)), labels=RULES)
            panel.set(xticks=[], yticks=[], title=f"layer {layer}, by {title}")
    save(path, figure)


def embed(code_BxC: np.ndarray, seed: int) -> np.ndarray:
    """tSNE of standardised codes, Bx2; zeros if codes are too few or all alike."""
    if len(code_BxC) < 3 or effective_rank(code_BxC) == 0:  # scikit-learn ends in NaN, and crashes
        return np.zeros((len(code_BxC), 2))
    standard = StandardScaler().fit_transform(code_BxC.astype(np.float64))
    perplexity = min(MAX_PERPLEXITY, (len(code_BxC) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(standard)
