"""All benchmarks as data: the paper's experiments with what it published, and two more tasks.

Published figures are a mean and standard error over three seeds, times 100. Sources: the paper's
Table A1, and its public reviews for the activations.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from hyla_lm.evals.experiments.rows import Benchmark, Column, Estimate, Experiment, Row, Setting

# Table A1: label, R2 of fuzzy logic (N = 32, 70 % held out, 50,000 steps) and accuracy of SRAVEN
# (4 layers, width 1, 20M instances). The paper's own rows with experts are named `_moe`.
TABLE_A1 = {
    "softmax": ("Softmax attention", (63.28, 2.31), (56.56, 1.05)),
    "linear": ("Linear attention", (59.89, 5.22), (56.30, 1.11)),
    "hyla": ("HYLA", (81.13, 7.77), (69.13, 1.90)),
    "linear_rms_head": ("Linear attention + RMSHead", (68.93, 5.10), (59.01, 2.50)),
    "linear_rms_head_nonlinear_value": (
        "Linear attention + RMSHead + nonlinear value",
        (56.91, 4.25),
        (55.38, 0.32),
    ),
    "hyla_no_rms_head": ("HYLA − RMSHead", (81.27, 7.88), (62.53, 5.73)),
    "hyla_no_nonlinearity": ("HYLA − nonlinearity", (84.54, 5.32), (56.54, 0.21)),
    "hyla_no_nonlinearity_no_rms_head": (
        "HYLA − nonlinearity − RMSHead",
        (79.42, 7.43),
        (56.33, 1.41),
    ),
    "hyla_softmax_no_rms_head": ("HYLA − RMSHead + softmax", (70.98, 7.08), (38.21, 2.98)),
    "hyla_deep": ("HYLA + deep value network", (87.65, 4.54), (66.59, 0.08)),
    "hyla_softmax": ("HYLA + softmax", (82.47, 4.22), (62.21, 3.08)),
    "softmax_moe": ("Softmax attention + MoE", (63.83, 6.07), (57.68, 1.31)),
    "linear_moe": ("Linear attention + MoE", (60.09, 6.16), (64.34, 4.3)),
    "hyla_moe": ("HYLA + MoE", (82.37, 6.55), (66.94, 3.94)),
}
TABLE_A1_NOTE = (
    "The paper defines neither “nonlinear value” nor “+ softmax”. Here the first is the sum over "
    "keys of a · φ(v) in each head, the second a softmax over keys and then RMSHead. MoE: 5 "
    "experts of the full size, 2 a token, as its reviews say."
)
BASIC = ("softmax", "linear", "hyla")

# Reviews: HYLA with another nonlinearity, on SRAVEN as in Table A1.
SRAVEN_ACTIVATIONS = {
    "gelu": (58.92, 1.50),
    "relu": (69.13, 1.90),
    "sigmoid": (56.26, 1.83),
    "silu": (71.04, 1.05),
    "tanh": (54.87, 0.26),
}

PRESETS = ("paper", "strict")
# Measured once, by enumeration with hyla_lm.evals.tasks.ambiguity.
MEASURED_AMBIGUITY = json.loads((Path(__file__).parent / "ambiguity_measurements.json").read_text())
MILLIONS = {10: 0.5, 20: 1.0, 40: 2.0}  # examples, as shares of the full schedule


def ceiling(name: str) -> Estimate:
    """The accuracy of SRAVEN's best possible solver, times 100."""
    mean, error = MEASURED_AMBIGUITY[name]["best_accuracy_expected"]
    return 100 * mean, 100 * error


CEILING = ceiling("M=4 K=8")


def attention(name: str) -> tuple[str, ...]:
    """The bindings of a row of Table A1."""
    plain = (f'ModelConfig.attention = "{name.removesuffix("_moe")}"',)
    return (*plain, 'ModelConfig.feedforward = "moe"') if name.endswith("_moe") else plain


def table_a1(column: int, setting: Setting) -> Experiment:
    """The 14 rows of Table A1, with one of its two columns."""
    rows = (
        Row(name, label, attention(name), published[column], setting=setting)
        for name, (label, *published) in TABLE_A1.items()
    )
    return Experiment("Table A1, model ablations", tuple(rows), TABLE_A1_NOTE)


def crossed(settings: Iterable[Setting]) -> tuple[Row, ...]:
    """Softmax, linear attention and HYLA in every setting."""
    every = list(settings)
    return tuple(
        Row(name, TABLE_A1[name][0], (*attention(name), *setting.bindings), setting=setting)
        for name in BASIC
        for setting in every
    )


def varied(name: str, bindings: Mapping[float, tuple[str, ...]]) -> tuple[Row, ...]:
    """SRAVEN's rows at each value of what is varied."""
    return crossed(Setting(f"{name}_{x}", b, x, ceiling=CEILING) for x, b in bindings.items())


def scaled(bindings: Mapping[str, tuple[str, tuple[str, ...]]]) -> tuple[Row, ...]:
    """SRAVEN's rows with 10, 20 and 40 million examples in each panel, from its name and title."""
    return crossed(
        Setting(f"{name}-millions_{millions}", of_panel, millions, title, share, CEILING)
        for name, (title, of_panel) in bindings.items()
        for millions, share in MILLIONS.items()
    )


CONTEXT_LENGTH = Experiment(
    "Figures 2C and A3, examples in context and share held out",
    crossed(
        Setting(
            f"length_{length}-held_out_{share}",
            (f"SEQUENCE_LENGTH = {length}", f"FuzzyLogic.held_out_fraction = {share}"),
            length,
            f"{share:.0%} held out",
        )
        for share in (0.3, 0.5, 0.7)
        for length in (16, 32, 64, 96)
    ),
    x_label="examples in context",
)
HEADS = Experiment(
    "Figure 5C, heads",
    varied(
        "heads",
        {
            heads: (f"ModelConfig.num_heads = {heads}", f"ModelConfig.head_dim = {64 // heads}")
            for heads in (1, 2, 4, 8, 16)
        },
    ),
    "Queries, keys and values have 64 dimensions over all heads. The paper does not say which "
    "numbers of heads it tried: these are ours.",
    "heads",
)
FEATURES = Experiment(
    "Figure 5D, features of a panel",
    crossed(
        Setting(
            f"features_{features}",
            (
                f"Sraven.num_features = {features}",
                f"SEQUENCE_LENGTH = {9 * features}",
                *(() if features == 4 else ('Sraven.split = "covering"',)),
            ),
            features,
            ceiling=ceiling(f"M={features} K=8"),
        )
        for features in (2, 3, 4)
    ),
    "The paper's splits are known for four features; for fewer the split is `covering`. More than "
    "four are not possible here.",
    "features",
)
WIDTH = Experiment(
    "Figures 4A and A4A, examples and width",
    scaled(
        {
            f"width_{width}": (
                f"width {width}",
                (
                    f"ModelConfig.model_dim = {128 * width}",
                    f"ModelConfig.num_heads = {16 * width}",
                    f"ModelConfig.mlp_dim = {256 * width}",
                ),
            )
            for width in (1, 2, 4)
        }
    ),
    "The width factor multiplies heads too, as in the paper's code.",
    "million examples",
)
DEPTH = Experiment(
    "Figures 4B and A4B, examples and depth",
    scaled(
        {
            f"layers_{layers}": (f"{layers} layers", (f"ModelConfig.num_layers = {layers}",))
            for layers in (4, 8, 16)
        }
    ),
    x_label="million examples",
)
HELD_OUT = Experiment(
    "Figure A5, share held out",
    varied(
        "held_out",
        {x: (f"Sraven.held_out_fraction = {x}",) for x in (0.1, 0.25, 0.5, 0.75, 0.9)},
    ),
    "The paper does not say which shares it tried: these are ours.",
    "share of rule multisets held out",
)
ACTIVATIONS = Experiment(
    "Reviews, nonlinearity of HYLA's value network",
    tuple(
        Row(
            f"hyla_{name}",
            f"HYLA, {name}",
            (*attention("hyla"), f'ModelConfig.value_activation = "{name}"'),
            published,
            setting=Setting(ceiling=CEILING),
        )
        for name, published in SRAVEN_ACTIVATIONS.items()
    ),
)


def ours(task: str, metric: str, loss: str) -> Benchmark:
    """A task that is not the paper's, with three kinds of attention: its gin file has its name."""
    name = metric.lower()
    return Benchmark(
        task,
        task,
        f"{metric} on new combinations",
        Column("held out", f"validation/held_out_{name}"),
        Column("in distribution", f"validation/in_distribution_{name}"),
        (Column("training loss", f"train/{loss}", 1.0, 4),),
        {"learning_rate": (1e-3, 3e-3)},
        {"attention": Experiment("kinds of attention", crossed([Setting()]))},
        {"plain": f"{task.lower()}.gin"},
        is_published=False,
    )


BENCHMARKS: Mapping[str, Benchmark] = {
    "fuzzy_logic": Benchmark(
        "Fuzzy logic",
        "FuzzyLogic",
        "OOD R2",
        Column("held out", "validation/held_out_r2"),
        Column("in distribution", "validation/in_distribution_r2"),
        (
            Column("unknown terms", "validation/unknown_terms_r2"),
            Column("training error", "train/mse", 1.0, 4),
        ),
        {"learning_rate": (1e-3, 3e-3), "weight_decay": (0.03, 0.1)},
        {"table_a1": table_a1(0, Setting()), "context_length": CONTEXT_LENGTH},
        {preset: f"fuzzy_logic_{preset}.gin" for preset in PRESETS},
    ),
    "sraven": Benchmark(
        "SRAVEN",
        "Sraven",
        "OOD accuracy",
        Column("held out", "validation/held_out_accuracy"),
        Column("in distribution", "validation/in_distribution_accuracy"),
        (
            Column("held out, unambiguous", "validation/held_out_unambiguous_accuracy"),
            Column("training loss, nats", "train/loss_nats", 1.0, 4),
        ),
        {
            "learning_rate": (3e-4, 1e-3),
            "weight_decay": (0.1, 0.3),
            "warmup_steps": (1000, 3000),
        },
        {
            "table_a1": table_a1(1, Setting(ceiling=CEILING)),
            "activations": ACTIVATIONS,
            "heads": HEADS,
            "features": FEATURES,
            "width": WIDTH,
            "depth": DEPTH,
            "held_out": HELD_OUT,
        },
        {preset: f"sraven_{preset}.gin" for preset in PRESETS},
    ),
    "match3": ours("Match3", "accuracy", "loss_nats"),
    "hyperteacher": ours("Hyperteacher", "R2", "mse"),
}
