"""What a model sees of a text that is longer than the rows it was trained on.

Up to T tokens, all of them: T is the length of a row. With one more, the older half is dropped, and
the window grows to T again: between half a row and a row of the last tokens. So a pass over half a
row is due only every half row, and a token costs the same on average however long the text is.

This is so for every kind of attention and positions. A recurrent layer could go on without end, and
rotary positions too, but no distance above T was trained, and sums that nothing normalises would
grow beyond what the next layer has seen. Learned positions end at T.
"""


def window_size(total: int, row: int) -> int:
    """How many of the last tokens of a text of `total` the model sees."""
    half = kept(row)
    return total if total <= row else half + (total - row - 1) % (row - half + 1)


def kept(row: int) -> int:
    """How many tokens stay when a window is full: half a row."""
    return (row + 1) // 2


def window_starts(total: int, row: int) -> list[int]:
    """Where windows of a row each start, so that every token is predicted as `window_size` says.

    Each window predicts what the one before did not reach; the first token is predicted by none.
    """
    half = kept(row)
    return list(range(0, max(total - half, 1), row - half + 1))


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below the count."""
    return 1 << (count - 1).bit_length()
