"""Where the files of this package are: in an installed package, and in a clone."""

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
