"""The command hyla-lm, which is also python -m hyla_lm."""

import signal


def entry_point() -> None:
    """The console script; Ctrl-C while modules are imported ends it without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hyla_lm import cli

    cli.entry_point()


if __name__ == "__main__":
    entry_point()
