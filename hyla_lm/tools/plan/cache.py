"""Keeps the compiled step as an entry of JAX's persistent compilation cache."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from hyla_lm.errors import UserError

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
CAVEAT = (
    "JAX looks an entry up by program, versions of jaxlib and libtpu, compile options and "
    "topology. That a real slice has this key has not been tried; if not, it compiles as ever."
)


@dataclass
class Entry:
    """The file of a program in the cache folder."""

    name: str = ""
    size_bytes: int = 0


@contextmanager
def kept(folder: str | None) -> Iterator[Entry]:
    """Keeps the programs compiled in the block in `folder`, each entry whole or not at all.

    Entries are always compiled anew, in a folder of their own: without a chip JAX can write
    entries but not read them.
    """
    entry = Entry()
    if folder is None:
        yield entry
        return
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.TemporaryDirectory(prefix=".partial-", dir=path)
    except OSError as error:
        raise UserError(f"--cache_dir={folder} cannot be used: {error.strerror}.") from error
    with fresh as partial:
        settings = {
            "jax_compilation_cache_dir": partial,
            "jax_persistent_cache_min_compile_time_secs": 0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
            "jax_persistent_cache_enable_xla_caches": "none",
        }
        before = {name: getattr(jax.config, name) for name in settings}
        _configure(settings)
        try:
            yield entry
        finally:
            _configure(before)
        for made in sorted(Path(partial).glob("*-cache"), key=os.path.getsize):
            entry.name, entry.size_bytes = made.name, made.stat().st_size
            made.replace(path / made.name)
    if not entry.name:
        raise UserError(f"JAX wrote no entry to --cache_dir={folder}.")


def _configure(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
