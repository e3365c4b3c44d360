"""A notice to stop that comes when a test wants it."""

from hyla_lm.parallel.preemption import Notice


class Stops(Notice):
    """A notice that comes at the given call."""

    def __init__(self, at: int):
        super().__init__()
        self.at = at

    def came(self) -> bool:
        self._calls += 1
        return self._calls >= self.at
