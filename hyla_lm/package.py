"""Where the files of this package are, installed or in a clone, and of which commit they are."""

import subprocess
import sys
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
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


def install(extra: str) -> str:
    """The command that installs an extra for the Python that runs, in a clone or beside a wheel."""
    clone = folder("gin").parent
    what = f"'hyla_lm[{extra}]'" if clone == PACKAGE else f"-e '{clone}[{extra}]'"
    return f"{sys.executable} -m pip install {what}"


@cache  # what is committed while a process runs is not what runs
def git_revision() -> str | None:
    """The commit of the clone that this package runs from; None outside a clone.

    It ends with "-dirty" where files differ from it.
    """
    # git must know this file: an environment may lie in the clone of something else.
    known = _git("ls-files", "--error-unmatch", "__init__.py")
    return (
        None
        if known is None
        else _git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    )


def _git(*arguments: str) -> str | None:
    """What git says of the package's folder; None where it has nothing to say."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
