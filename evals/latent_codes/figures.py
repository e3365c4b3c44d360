"""Pictures of latent codes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.manifold import TSNE

from hyla_lm.evals.latent_codes.decoding import effective_rank
from hyla_lm.evals.pictures import plt, save
from hyla_lm.evals.tasks.sraven_rules import RULES

CELL_INCHES = 3.2
MAX_NAMED = 16
MAX_PERPLEXITY = 30.0


def draw_decoding(path: Path, decoding: Mapping[str, Any]) -> None:
    """Draws F1 of each part by layer, a panel a set, with baselines without the code."""
    figure, axes = plt.subplots(
        len(decoding), 1, figsize=(9, 2.8 * len(decoding)), layout="constrained", squeeze=False
    )
    for panel, (name, layers) in zip(axes[:, 0], decoding.items(), strict=True):
        parts = _part_names(layers["0"])
        width = 0.8 / len(layers)
        for index, (layer, scores) in enumerate(layers.items()):
            places = np.arange(len(parts)) - 0.4 + width * (index + 0.5)
            label = "all layers" if layer == "all" else f"layer {layer}"
            panel.bar(places, _part_f1(scores), width, label=label)
        for label, value, style in _baselines(layers["0"]):
            panel.axhline(value, color="black", linestyle=style, linewidth=1, label=label)
        turned = 20 if len(parts[0]) > 3 else 0
        panel.set_xticks(range(len(parts)), parts, rotation=turned)
        panel.set(title=name.replace("_", " "), ylabel="F1", ylim=(0, 1))
    axes[0, 0].legend(fontsize=7, ncols=4)
    axes[-1, 0].set_xlabel("rule" if "accuracy" in layers["0"] else "term")
    save(path, figure)


def _part_names(scores: Mapping[str, Any]) -> list[str]:
    return list(scores["terms"]) if "terms" in scores else list(RULES)


def _part_f1(scores: Mapping[str, Any]) -> list[float]:
    if "terms" in scores:
        return [term["f1"] for term in scores["terms"].values()]
    return scores["f1"]


def _baselines(scores: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    if "terms" not in scores:
        return [("majority (macro F1)", scores["majority_macro_f1"], "--")]
    means = scores["mean"]
    return [("majority", means["majority_f1"], "--"), ("always yes", means["always_f1"], ":")]


def draw_similarity(
    path: Path, names: Sequence[str], similarity: Mapping[str, list[np.ndarray]]
) -> None:
    """Draws cosine similarities of groups' mean codes: a row a kind of mean, a column a layer."""
    count = len(next(iter(similarity.values())))
    is_small = len(names) <= MAX_NAMED
    size, font = (CELL_INCHES, 7) if is_small else (1.8 * CELL_INCHES, 4)
    shape = (len(similarity), count)
    figure, axes = plt.subplots(
        *shape,
        figsize=(size * count + 2, size * len(similarity) + 1),
        squeeze=False,
        layout="constrained",
        sharex=True,
        sharey=True,
    )
    for row, (kind, layers) in zip(axes, similarity.items(), strict=True):
        for layer, (panel, values_GxG) in enumerate(zip(row, layers, strict=True)):
            image = panel.imshow(values_GxG, vmin=-1, vmax=1, cmap="RdBu_r")
            panel.set_xticks(range(len(names)), names, rotation=90, fontsize=font)
            panel.set_yticks(range(len(names)), names, fontsize=font)
            panel.set_title(f"layer {layer}, {kind}", fontsize=9)
    figure.colorbar(image, ax=axes, label="cosine similarity", shrink=0.6)
    save(path, figure)


def draw_tsne(
    path: Path,
    code_NxBxC: np.ndarray,
    colours: Mapping[str, tuple[np.ndarray, Sequence[str] | None]],
    seed: int,
) -> None:
    """Draws codes of each layer in the plane: a row for each layer, a column for each colouring."""
    count, examples = code_NxBxC.shape[:2]
    figure, axes = plt.subplots(
        count,
        len(colours),
        figsize=((CELL_INCHES + 1.2) * len(colours), CELL_INCHES * count),
        layout="constrained",
        squeeze=False,
    )
    for layer, code_BxC in enumerate(code_NxBxC):
        place_Bx2 = embed(code_BxC, seed)
        for panel, (title, (value_B, names)) in zip(axes[layer], colours.items(), strict=True):
            _scatter(panel, place_Bx2, value_B[:examples], names)
            panel.set(xticks=[], yticks=[], title=f"layer {layer}, by {title}")
    save(path, figure)


def embed(code_BxC: np.ndarray, seed: int) -> np.ndarray:
    """tSNE of standardised codes, Bx2; zeros if codes are too few or all alike."""
    if len(code_BxC) < 3 or effective_rank(code_BxC) == 0:  # scikit-learn ends in NaN, and crashes
        return np.zeros((len(code_BxC), 2))
    code_BxC = code_BxC.astype(np.float64)
    spread_C = code_BxC.std(0)
    standard = (code_BxC - code_BxC.mean(0)) / np.where(spread_C > 0, spread_C, 1)
    perplexity = min(MAX_PERPLEXITY, (len(code_BxC) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(standard)


def _scatter(
    panel: Any, place_Bx2: np.ndarray, value_B: np.ndarray, names: Sequence[str] | None
) -> None:
    few = names is not None and len(names) <= MAX_NAMED
    colours = plt.get_cmap("tab20" if few else "viridis" if names is None else "gist_rainbow")
    if few:
        assert names is not None
        for index, name in enumerate(names):
            chosen = place_Bx2[value_B == index]
            panel.scatter(*chosen.T, s=4, color=colours(index % 20), label=name, linewidths=0)
        panel.legend(fontsize=6, markerscale=3, loc="center left", bbox_to_anchor=(1, 0.5))
        return
    points = panel.scatter(*place_Bx2.T, s=4, c=value_B, cmap=colours, linewidths=0)
    if names is None:
        panel.figure.colorbar(points, ax=panel)
