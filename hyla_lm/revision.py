"""Which code this is: the version, and the commit where it runs from a clone."""

import subprocess
from functools import cache
from pathlib import Path

from hyla_lm import __version__

PACKAGE = Path(__file__).parent
DIRTY = "-dirty"


def git_revision() -> str | None:
    """The commit of the clone that this package runs from; None outside a clone."""
    return _commit(PACKAGE)


def described() -> str:
    """The version, and in a clone the commit and whether files differ from it."""
    found = _git("describe", "--always", "--abbrev=7", "--dirty", "--exclude=*")
    if not found or not _is_of_a_clone():
        return __version__
    changes = ", with changes" if found.endswith(DIRTY) else ""
    return f"{__version__} ({found.removesuffix(DIRTY)}{changes})"


@cache  # what is committed while a process runs is not what runs
def _commit(package: Path) -> str | None:
    return _git("rev-parse", "HEAD") if _is_of_a_clone() else None


def _is_of_a_clone() -> bool:
    """Whether git knows this file: an environment may lie in the clone of something else."""
    return _git("ls-files", "--error-unmatch", "__init__.py") is not None


def _git(*arguments: str) -> str | None:
    """What git says of the package's folder; None where it has nothing to say."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
