"""What a collective is for, from its kind, its axes, its arrays and the place it comes from."""

import re
from collections.abc import Sequence

PARAMETERS = "parameters for use"
GRADIENTS = "gradients"
TABLE = "token table for use"
TABLE_GRADIENT = "gradient of the token table"
ACTIVATIONS = "activations over model"
NUMBERS = "norms and metrics"
PURPOSES = (PARAMETERS, GRADIENTS, TABLE, TABLE_GRADIENT, ACTIVATIONS, NUMBERS)
_OF_TABLE = re.compile(r"/embed/|\(head\)|/head/|logits")
_BACKWARD = re.compile(r"transpose\(")


def purpose(
    kind: str,
    axes: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    op_name: str,
    table_rows: int | None,
) -> str:
    """One of PURPOSES; `table_rows` is the size of the vocabulary, None without one.

    A gather over axes that do not divide parameters is the second half of a sum of gradients. A
    permute belongs to a product that XLA does piece by piece: in the backward pass it carries a
    gradient, elsewhere a parameter.
    """
    if all(size == 1 for shape in shapes for size in shape):
        return NUMBERS
    if "model" in axes:
        return ACTIVATIONS
    of_table = _OF_TABLE.search(op_name) or any(table_rows in shape for shape in shapes)
    if _is_sum(kind, axes, op_name):
        return TABLE_GRADIENT if of_table else GRADIENTS
    return TABLE if of_table else PARAMETERS


def _is_sum(kind: str, axes: Sequence[str], op_name: str) -> bool:
    if kind == "all-gather":
        return "fsdp" not in axes
    if kind == "collective-permute":
        return bool(_BACKWARD.search(op_name))
    return kind != "all-to-all"
