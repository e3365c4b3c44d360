"""Devices that were asked for and are not here are one sentence."""

import jax
import pytest

from hyla_lm.errors import Unavailable, UserError
from hyla_lm.parallel import mesh


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        (
            "tpu",
            RuntimeError("no libtpu.so (set JAX_PLATFORMS='' to choose)\nmore"),
            r"JAX_PLATFORMS=tpu .* here \(no libtpu.so\): install hyla_lm\[tpu\]",
        ),
        ("cuda", AssertionError(), r"JAX_PLATFORMS=cuda .* find here \(AssertionError\): install"),
        ("", RuntimeError("the TPU is in use"), "the TPU is in use.*JAX_PLATFORMS=cpu"),
    ],
)
def test_devices_that_are_not_here_are_one_sentence(
    asked: str, error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def devices() -> list[jax.Device]:
        raise error

    mesh.check_devices.cache_clear()
    monkeypatch.setenv("JAX_PLATFORMS", asked)
    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(UserError, match=says) as raised:
        mesh.all_devices()
    assert isinstance(raised.value, Unavailable) == (asked == "")
