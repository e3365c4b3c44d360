"""The command hyla-lm, which is also python -m hyla_lm."""

import signal

from hyla_lm.cli.huge_pages import choose_cpu, start_with_huge_pages


def entry_point() -> None:
    """The console script; Ctrl-C while modules are imported ends it without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    start_with_huge_pages()
    choose_cpu()
    from hyla_lm import ending
    from hyla_lm.cli.main import main

    ending.process(main)


if __name__ == "__main__":
    entry_point()
