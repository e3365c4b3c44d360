"""Block sizes of the TPU kernel by shape, chosen by counted cycles."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hyla_lm.attention.hyla.tpu_common import Problem
from hyla_lm.attention.lanes import LANES

SPAN_BYTES = 16 * 2**20


@dataclass(frozen=True)
class ForwardBlocks:
    """`query_blocks` share one block of keys; registers sum `value_tile` units at a time."""

    query_blocks: int = 8
    value_tile: int = 32


# By (heads, K, U): the fewest cycles of a causal forward pass at T = 1024 in bfloat16, among 4, 8
# and 16 query blocks and tiles of 16, 32 and 64 units. Comments: its cycles against the default's.
FORWARD_BLOCKS: Mapping[tuple[int, int, int], ForwardBlocks] = MappingProxyType(
    {
        (4, 64, 64): ForwardBlocks(8, 64),  # 194,988 against 195,132
        (4, 128, 128): ForwardBlocks(8, 16),  # 412,734 against 423,102
        (8, 32, 32): ForwardBlocks(8, 32),  # 139,409, the default
        (8, 64, 64): ForwardBlocks(8, 32),  # 214,414, the default
        (8, 128, 128): ForwardBlocks(8, 32),  # 552,976, the default
        (16, 32, 32): ForwardBlocks(8, 32),  # 287,179, the default
        (16, 64, 64): ForwardBlocks(8, 16),  # 534,874 against 537,682
    }
)


def forward_blocks(p: Problem) -> ForwardBlocks:
    """The table's blocks for (heads, K, U), or else the default cut to fit VMEM."""
    known = FORWARD_BLOCKS.get((p.heads, p.key_dim, p.value_dim))
    if known is not None:
        return known
    bytes_per_block = p.heads * p.value_dim * LANES * (4 + 2 * p.dtype.itemsize)
    fitting = max(1, SPAN_BYTES // bytes_per_block)
    tile = next(size for size in (32, 16) if p.value_dim % size == 0)
    return ForwardBlocks(min(ForwardBlocks.query_blocks, fitting), tile)
