"""What a person sees of a run in the terminal: plain lines."""

import time

from hyla_lm.ending import write_no_more
from hyla_lm.signals import signals

MIN_SECONDS_BETWEEN_LINES = 5.0


class Console:
    """The lines of a run. Only process 0 prints; for the others, `prints` is False."""

    def __init__(self, steps: int, prints: bool = True):
        self._steps, self._prints = steps, prints
        self._last_line = float("-inf")

    def show_step(
        self, step: int, described: str, tokens_per_second: float | None, left: str = ""
    ) -> None:
        """A line of a logged step every few seconds: metrics, speed if known, and time left."""
        now = time.monotonic()
        if now - self._last_line < MIN_SECONDS_BETWEEN_LINES and step != self._steps:
            return
        self._last_line = now
        speed = "" if tokens_per_second is None else f"{tokens_per_second:,.0f} tokens/s"
        text = "  ".join(filter(None, (described, speed, left)))
        self.print(f"step {step}/{self._steps}  {text}")

    def print(self, line: str) -> None:
        """Prints a line; a run whose output is gone, or on a full disk, saves and ends."""
        try:
            if self._prints:
                print(line, flush=True)
        except OSError as error:
            write_no_more()
            signals().interrupt(f"the output cannot be written ({error.strerror})")
