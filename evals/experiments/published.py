"""Published figures: mean and standard error over three seeds, times 100.

Sources: the paper's Tables A1 and A2, and its public reviews for the activations.
"""

Estimate = tuple[float, float]

# Table A1, fuzzy logic: N = 32, 70 % held out, 50,000 steps.
FUZZY_LOGIC_A1 = {
    "softmax": (63.28, 2.31),
    "linear": (59.89, 5.22),
    "hyla": (81.13, 7.77),
    "linear_rms_head": (68.93, 5.10),
    "linear_rms_head_nonlinear_value": (56.91, 4.25),
    "hyla_no_rms_head": (81.27, 7.88),
    "hyla_no_nonlinearity": (84.54, 5.32),
    "hyla_no_nonlinearity_no_rms_head": (79.42, 7.43),
    "hyla_softmax_no_rms_head": (70.98, 7.08),
    "hyla_deep": (87.65, 4.54),
    "hyla_softmax": (82.47, 4.22),
    "softmax_moe": (63.83, 6.07),
    "linear_moe": (60.09, 6.16),
    "hyla_moe": (82.37, 6.55),
}

# Table A1, SRAVEN: 4 layers, width 1, 20M instances.
SRAVEN_A1 = {
    "softmax": (56.56, 1.05),
    "linear": (56.30, 1.11),
    "hyla": (69.13, 1.90),
    "linear_rms_head": (59.01, 2.50),
    "linear_rms_head_nonlinear_value": (55.38, 0.32),
    "hyla_no_rms_head": (62.53, 5.73),
    "hyla_no_nonlinearity": (56.54, 0.21),
    "hyla_no_nonlinearity_no_rms_head": (56.33, 1.41),
    "hyla_softmax_no_rms_head": (38.21, 2.98),
    "hyla_deep": (66.59, 0.08),
    "hyla_softmax": (62.21, 3.08),
    "softmax_moe": (57.68, 1.31),
    "linear_moe": (64.34, 4.3),
    "hyla_moe": (66.94, 3.94),
}

# Reviews: HYLA with another nonlinearity, on SRAVEN as in Table A1.
SRAVEN_ACTIVATIONS = {
    "gelu": (58.92, 1.50),
    "relu": (69.13, 1.90),
    "sigmoid": (56.26, 1.83),
    "silu": (71.04, 1.05),
    "tanh": (54.87, 0.26),
}

# Table A2: ambiguous instances of SRAVEN with 4 features, by the number of symbols.
SRAVEN_AMBIGUITY = {4: (6.42, 0.38), 8: (0.32, 0.09), 16: (0.05, 0.03)}
