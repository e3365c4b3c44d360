"""Block sizes of the TPU kernel by shape, chosen by counted cycles."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hyla_lm.kernels.hyla.tpu_common import LANES, Problem

SPAN_BYTES = 16 * 2**20


@dataclass(frozen=True)
class ForwardBlocks:
    """`query_blocks` share a block of keys; registers sum `value_tile` units at a time."""

    query_blocks: int = 8
    value_tile: int = 32


FORWARD_BLOCKS: Mapping[tuple[int, int, int], ForwardBlocks] = MappingProxyType({})


def forward_blocks(p: Problem) -> ForwardBlocks:
    """The blocks for a shape: from the table by (heads, K, U), or the default cut to fit VMEM."""
    known = FORWARD_BLOCKS.get((p.heads, p.key_dim, p.value_dim))
    if known is not None:
        return known
    bytes_per_block = p.heads * p.value_dim * LANES * (4 + 2 * p.dtype.itemsize)
    fitting = max(1, SPAN_BYTES // bytes_per_block)
    tile = next(size for size in (32, 16) if p.value_dim % size == 0)
    return ForwardBlocks(min(ForwardBlocks.query_blocks, fitting), tile)
