"""What to change in a config whose step does not fit."""

import math
from typing import Any

from hyla_lm.config.experiment import Experiment
from hyla_lm.parallel.mesh import batch_ways
from hyla_lm.tools.plan.compile import OutOfMemory
from hyla_lm.tools.plan.topology import TOPOLOGIES, Slice

GIB = 2**30


def advice(experiment: Experiment, topology: Slice, refusal: OutOfMemory) -> list[str]:
    """Bindings and flags that lower the bytes a chip, cheapest first, with their effect."""
    e, train = experiment, experiment.train
    factor = refusal.needed_bytes / refusal.available_bytes
    mesh = refusal.mesh
    ways = batch_ways(mesh)
    lines = []
    if e.model.attention_implementation not in ("auto", "pallas_tpu"):
        lines.append(
            "ModelConfig.attention_implementation = 'auto': takes a kernel that keeps no "
            f"T x T array, where it is {e.model.attention_implementation!r} now"
        )
    parts = 2 ** math.ceil(math.log2(factor))
    accumulated = train.accumulate_steps * parts
    if train.batch_size % (accumulated * ways) == 0:
        lines.append(
            f"TrainConfig.accumulate_steps = {accumulated}: the same batch in {parts} times as "
            "many micro-batches"
        )
    rows = int(train.batch_size / factor) // ways * ways
    if rows:
        lines.append(f"TrainConfig.batch_size = {rows} instead of {train.batch_size}, or less")
    if not e.model.remat:
        lines.append("ModelConfig.remat = True: blocks are computed again in the backward pass")
    if mesh.shape["data"] > 1:
        shards = mesh.shape["data"] * mesh.shape["fsdp"]
        lines.append(
            f"MeshConfig.data = 1 and MeshConfig.fsdp = {shards}: parameters and optimizer state "
            f"are divided over {shards} chips"
        )
    generation = f"{topology.chip.generation}:"
    slices = [Slice(x, topology.count) for x in TOPOLOGIES if x.startswith(generation)]
    larger = [slice_.name for slice_ in slices if slice_.chips >= factor * topology.chips]
    if larger:
        lines.append(f"--topology={larger[0]}: fewer rows a chip")
    return lines


def sentence(plan: dict[str, Any]) -> str:
    """The refusal in one sentence."""
    return (
        f"The step needs {plan['needed_bytes'] / GIB:.2f} GiB a chip and {plan['topology']} has "
        f"{plan['available_bytes'] / GIB:.2f}. Change one: {'; '.join(plan['change'])}."
    )
