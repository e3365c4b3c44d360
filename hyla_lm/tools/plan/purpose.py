"""What a collective is for, from its kind, its axes, its arrays and the place it comes from."""

import re

from hyla_lm.tools.plan.collectives import Collective

PARAMETERS = "parameters for use"
GRADIENTS = "gradients"
TABLE = "token table for use"
TABLE_GRADIENT = "gradient of the token table"
ACTIVATIONS = "activations over model"
NUMBERS = "norms and metrics"
PURPOSES = (PARAMETERS, GRADIENTS, TABLE, TABLE_GRADIENT, ACTIVATIONS, NUMBERS)
_OF_TABLE = re.compile(r"/embed/|\(head\)|/head/|logits")
_BACKWARD = re.compile(r"transpose\(")


def purpose(x: Collective, table_rows: int | None) -> str:
    """One of PURPOSES; `table_rows` is the size of the vocabulary, None without one.

    A gather over axes that do not divide parameters is the second half of a sum of gradients. A
    permute belongs to a product that XLA does piece by piece: in the backward pass it carries a
    gradient, elsewhere a parameter.
    """
    if all(size == 1 for shape in x.shapes for size in shape):
        return NUMBERS
    if "model" in x.axes:
        return ACTIVATIONS
    if _is_sum(x):
        return TABLE_GRADIENT if _is_table(x, table_rows) else GRADIENTS
    return TABLE if _is_table(x, table_rows) else PARAMETERS


def _is_table(x: Collective, rows: int | None) -> bool:
    """Whether every array is the token table, or the rows of it that a scattered sum leaves."""
    if len(x.shapes) == 1 and _OF_TABLE.search(x.op_name):
        return True
    parts = x.group_size if x.kind == "reduce-scatter" else 1
    return all(len(shape) == 2 and rows in (shape[0], shape[0] * parts) for shape in x.shapes)


def _is_sum(x: Collective) -> bool:
    if x.kind == "all-gather":
        return "fsdp" not in x.axes
    if x.kind == "collective-permute":
        return bool(_BACKWARD.search(x.op_name))
    return x.kind != "all-to-all"
