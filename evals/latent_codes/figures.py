"""Pictures of latent codes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.manifold import TSNE
from sklearn.preprocessing import StandardScaler

from hyla_lm.evals.latent_codes.decoding import effective_rank
from hyla_lm.evals.pictures import panels, save
from hyla_lm.evals.tasks.sraven_rules import RULES

CELL_INCHES = 3.2
MAX_NAMED = 16
MAX_PERPLEXITY = 30.0
TSNE_EXAMPLES = 1000
# Values of the points by title: numbers, or indices of named classes.
Colours = Mapping[str, tuple[np.ndarray, Sequence[str] | None]]


def draw_decoding(path: Path, decoding: Mapping[str, Any]) -> None:
    """Draws F1 of each part by layer, a panel a set, with baselines without the code."""
    figure, axes = panels(len(decoding), 1, 9, 2.8 * len(decoding))
    for panel, (name, layers) in zip(axes[:, 0], decoding.items(), strict=True):
        first = layers["0"]
        is_terms = "terms" in first
        parts = list(first["terms"]) if is_terms else list(RULES)
        width = 0.8 / len(layers)
        for index, (layer, scores) in enumerate(layers.items()):
            places = np.arange(len(parts)) - 0.4 + width * (index + 0.5)
            of_parts = [s["f1"] for s in scores["terms"].values()] if is_terms else scores["f1"]
            label = "all layers" if layer == "all" else f"layer {layer}"
            panel.bar(places, of_parts, width, label=label)
        baselines = first["mean"] if is_terms else first
        for baseline, style in (
            ("majority_f1", "--"),
            ("always_f1", ":"),
            ("majority_macro_f1", "--"),
        ):
            if baseline in baselines:
                options = {"color": "black", "linestyle": style, "linewidth": 1, "label": baseline}
                panel.axhline(baselines[baseline], **options)
        panel.set_xticks(range(len(parts)), parts, rotation=0 if is_terms else 20)
        panel.set(title=name.replace("_", " "), ylabel="F1", ylim=(0, 1))
    axes[0, 0].legend(fontsize=7, ncols=4)
    axes[-1, 0].set_xlabel("term" if is_terms else "rule")
    save(path, figure)


def draw_tsne(path: Path, code_NxBxC: np.ndarray, colours: Colours, seed: int) -> None:
    """Draws codes of each layer in the plane: a row for each layer, a column for each colouring."""
    code_NxBxC = code_NxBxC[:, :TSNE_EXAMPLES]
    rows, columns = len(code_NxBxC), len(colours)
    figure, axes = panels(rows, columns, (CELL_INCHES + 1.2) * columns, CELL_INCHES * rows)
    for layer, code_BxC in enumerate(code_NxBxC):
        place_Bx2 = embed(code_BxC, seed)
        for panel, (title, (value_B, names)) in zip(axes[layer], colours.items(), strict=True):
            _scatter(panel, place_Bx2, value_B[: len(code_BxC)], names)
            panel.set(xticks=[], yticks=[], title=f"layer {layer}, by {title}")
    save(path, figure)


def embed(code_BxC: np.ndarray, seed: int) -> np.ndarray:
    """tSNE of standardised codes, Bx2; zeros if codes are too few or all alike."""
    if len(code_BxC) < 3 or effective_rank(code_BxC) == 0:  # scikit-learn ends in NaN, and crashes
        return np.zeros((len(code_BxC), 2))
    standard = StandardScaler().fit_transform(code_BxC.astype(np.float64))
    perplexity = min(MAX_PERPLEXITY, (len(code_BxC) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(standard)


def _scatter(
    panel: Any, place_Bx2: np.ndarray, value_B: np.ndarray, names: Sequence[str] | None
) -> None:
    few = names is not None and len(names) <= MAX_NAMED
    colours = "tab20" if few else "viridis" if names is None else "gist_rainbow"
    points = panel.scatter(*place_Bx2.T, s=4, c=value_B, cmap=colours, linewidths=0)
    if names is None:
        panel.figure.colorbar(points, ax=panel)
    elif few:
        handles, _ = points.legend_elements(num=None)
        present = [names[value] for value in np.unique(value_B)]
        panel.legend(handles, present, fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
