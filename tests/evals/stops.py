"""A request to stop that comes when a test wants it."""

from hyla_lm.parallel.preemption import PreemptionGuard


class Stops(PreemptionGuard):
    """A request that comes at the given call."""

    def __init__(self, at: int):
        super().__init__()
        self.at = at

    def requested(self) -> bool:
        self._calls += 1
        return self._calls >= self.at
