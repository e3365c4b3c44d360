"""Where the files of this package are, installed or in a clone, and which version they are."""

import subprocess
from functools import cache
from pathlib import Path

from hyla_lm import __version__

PACKAGE = Path(__file__).parent
_DIRTY = "-dirty"
# In a wheel these are below the package, in a clone beside it.
BESIDE = ("data", "evals", "tpu", "gin")


def folder(name: str) -> Path:
    """The folder of a subpackage that may be beside the package, such as "gin"."""
    below = PACKAGE / name
    return below if below.is_dir() or name not in BESIDE else PACKAGE.parent / name


def source_folders() -> dict[str, Path]:
    """The folder of the package and of each subpackage beside it, by the name of the module."""
    beside = {f"{PACKAGE.name}.{name}": folder(name) for name in BESIDE if name != "gin"}
    return {PACKAGE.name: PACKAGE, **beside}


def git_revision() -> str | None:
    """The commit of the clone that this package runs from; None outside a clone."""
    return _commit(PACKAGE)


def described() -> str:
    """The version, and in a clone the commit and whether files differ from it."""
    found = _git("describe", "--always", "--abbrev=7", "--dirty", "--exclude=*")
    if not found or not _is_of_a_clone():
        return __version__
    changes = ", with changes" if found.endswith(_DIRTY) else ""
    return f"{__version__} ({found.removesuffix(_DIRTY)}{changes})"


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
