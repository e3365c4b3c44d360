"""What every curve, histogram and picture of a run shows, in a sentence: by its tag."""

from fnmatch import fnmatchcase

# The first pattern that fits a tag describes it; `*` stands for anything.
DESCRIPTIONS: tuple[tuple[str, str], ...] = (
    ("train/loss_nats", "Cross-entropy of training, in nats a token."),
    (
        "train/bits_per_byte",
        "Cross-entropy of training in bits, divided by the UTF-8 bytes of the text.",
    ),
    ("train/accuracy", "Share of the training targets that were the likeliest by the model."),
    ("train/code_loss", "Auxiliary loss on the latent codes, without its weight (CodeLoss)."),
    ("train/*", "Mean over the training steps since the point before."),
    ("validation/*loss_nats", "Cross-entropy of a validation set, in nats a token."),
    (
        "validation/*bits_per_byte",
        "Cross-entropy of a validation set in bits, divided by the UTF-8 bytes of its text.",
    ),
    ("validation/*accuracy", "Share of a validation set's targets that were the likeliest."),
    ("validation/*", "Mean over a set that is not trained on."),
    ("optim/learning_rate", "Learning rate of the last update."),
    (
        "optim/skipped_updates",
        "Updates left out since step 0, because their numbers went wrong (UpdatePolicy).",
    ),
    ("optim/gradient_norm", "Norm of all gradients before clipping; mean over the steps."),
    (
        "optim/gradient_norm/*",
        "Norm of the gradients of one layer before clipping; mean over the steps.",
    ),
    (
        "optim/update_norm",
        "Norm of what the optimizer adds to all parameters in a step; mean over the steps.",
    ),
    (
        "optim/update_norm/*",
        "Norm of what the optimizer adds to the parameters of one layer; mean over the steps.",
    ),
    ("optim/parameter_norm", "Norm of all parameters after the update; mean over the steps."),
    (
        "optim/parameter_norm/*",
        "Norm of the parameters of one layer after the update; mean over the steps.",
    ),
    ("optim/parameter_values/*", "Histogram of the parameters of one layer."),
    (
        "attention/score_rms/*",
        "Root mean square of the scores q.k / sqrt(K) + bias of one layer, before normalisation, "
        "over visible pairs.",
    ),
    (
        "attention/score_max/*",
        "Largest magnitude of a score of one layer, before normalisation, over visible pairs.",
    ),
    (
        "attention/entropy/*",
        "Entropy over the keys of the softmax of one layer, in nats; mean over queries and heads.",
    ),
    (
        "attention/code_rank/*",
        "Effective rank of the latent code of one layer, from 1 to the number of heads: the "
        "participation ratio of its covariance over heads, at visible pairs.",
    ),
    (
        "attention/dead_units/*",
        "Share of the value units of one layer that are zero for every visible pair.",
    ),
    (
        "attention/code_values/*",
        "Histogram of the latent code of one layer, over heads and visible pairs.",
    ),
    (
        "attention/unit_values/*",
        "Histogram of the value units of one layer, over visible pairs.",
    ),
    (
        "attention/code_picture/*",
        "Latent code of one layer for a validation row, queries down and keys across. Red, green "
        "and blue are its first three principal components over heads; masked pairs are white.",
    ),
    (
        "attention/head_pictures/*",
        "Latent code of one layer for a validation row, the heads side by side: red is positive, "
        "blue negative, light grey zero; masked pairs are white.",
    ),
    ("perf/step_seconds", "Seconds a training step, duties such as evaluation left out."),
    ("perf/tokens_per_second", "Training speed of all devices together; duties are left out."),
    ("perf/tokens_per_second_per_chip", "Training speed divided by the number of devices."),
    (
        "perf/mfu",
        "Share of the devices' bfloat16 peak that the model's own operations reach, by formula.",
    ),
    ("perf/data_wait_share", "Share of the time of steps in which training waited for data."),
    (
        "perf/device_memory_gb",
        "Memory in use on the fullest device of the first process, in GB of 10^9 bytes.",
    ),
    (
        "perf/device_memory_peak_gb",
        "Largest memory in use so far on a device of the first process, in GB of 10^9 bytes.",
    ),
    ("perf/host_memory_gb", "Memory of the first process on its host, in GB of 10^9 bytes."),
    ("perf/compile_seconds", "Seconds that compiling the train step took, once a process."),
    ("perf/save_seconds", "Seconds in which training waited for a save to start."),
    ("perf/evaluation_seconds", "Seconds of an evaluation of the validation sets."),
    ("perf/details_seconds", "Seconds of a look inside attention."),
    (
        "perf/goodput",
        "Share of the processes' time, over all restarts, that went into steps that are kept.",
    ),
    ("perf/*", "Speed or cost of the run."),
    ("canary/loss", "Loss of the kernel that trains, on the rows of the canary."),
    ("canary/reference_loss", "Loss of the reference kernel, on the rows of the canary."),
    (
        "canary/loss_difference",
        "Relative difference of the loss of the kernel that trains from the reference's.",
    ),
    (
        "canary/gradient_difference",
        "Relative difference of the gradients of the kernel that trains from the reference's.",
    ),
    (
        "suites/*_standard_error",
        "Standard error, over seeds, of a metric of small models with this run's attention.",
    ),
    ("suites/*", "Mean over seeds of a metric of small models with this run's attention."),
)


def description(tag: str) -> str:
    """The sentence of a tag; empty for one that nothing describes."""
    return next((told for pattern, told in DESCRIPTIONS if fnmatchcase(tag, pattern)), "")
