"""The order in which TensorBoard shows tags.

TensorBoard sorts by name, digits before letters. So the groups that people read first get a number,
and so do the metrics that they read first in a group.
"""

GROUPS = ("train", "validation", "optim", "attention", "perf")
METRICS = ("loss_nats", "bits_per_byte")


def shown(tag: str) -> str:
    """The name of a tag in TensorBoard: train/loss_nats is 1_train/1_loss_nats."""
    group, slash, metric = tag.partition("/")
    return f"{_numbered(group, GROUPS)}{slash}{_numbered(metric, METRICS)}"


def _numbered(name: str, first: tuple[str, ...]) -> str:
    return f"{first.index(name) + 1}_{name}" if name in first else name
