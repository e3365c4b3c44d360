"""The devices that JAX computes on: those that were asked for, or a sentence on why not."""

import functools
import logging
import os
from glob import glob

import jax

from hyla_lm.ending import reason_of
from hyla_lm.errors import Unavailable, UserError

TPU_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")
NVIDIA_FILES = ("/dev/nvidia[0-9]*",)
EXTRAS = {"tpu": "tpu", "cuda": "gpu", "gpu": "gpu"}
SET_HINT = " (set JAX_PLATFORMS"
log = logging.getLogger(__name__)


@functools.cache
def check_devices() -> None:
    """Raises UserError where JAX has no devices, or not those that JAX_PLATFORMS asks for.

    Warns once where it computes on the CPU although the machine seems to have more.
    """
    asked = os.environ.get("JAX_PLATFORMS", "")
    try:
        platform = jax.devices()[0].platform
    except (RuntimeError, AssertionError) as error:  # JAX asserts that it found a platform
        raise _missing(asked, reason_of(error).partition(SET_HINT)[0]) from error
    if platform == "cpu" and not asked and jax.process_index() == 0 and (sentence := unused()):
        log.warning(sentence)


def devices() -> list[jax.Device]:
    """JAX's devices, of all processes; raises UserError as `check_devices` does."""
    check_devices()
    return jax.devices()


def unused() -> str:
    """What to install for the devices whose files are here; empty where there are none."""
    for name, files in (("a TPU", TPU_FILES), ("an NVIDIA GPU", NVIDIA_FILES)):
        if any(map(glob, files)):
            extra = "tpu" if files is TPU_FILES else "gpu"
            return (
                f"this machine seems to have {name}, but JAX computes on the CPU: "
                f"pip install 'hyla_lm[{extra}]', or set JAX_PLATFORMS=cpu if that is meant."
            )
    return ""


def _missing(asked: str, reason: str) -> UserError:
    if not asked:
        return Unavailable(
            f"JAX cannot use the devices of this machine ({reason}): end the process that holds "
            "them, or set JAX_PLATFORMS=cpu."
        )
    extras = [EXTRAS[name] for name in asked.split(",") if name in EXTRAS]
    install = f"pip install 'hyla_lm[{extras[0]}]' on a machine that has them, " if extras else ""
    why = "" if reason == "AssertionError" else f" ({reason})"
    return UserError(
        f"JAX_PLATFORMS={asked} asks for devices that JAX does not find here{why}: {install}"
        f"{'or ' if install else ''}unset JAX_PLATFORMS."
    )
