"""Devices that were asked for and are not here, and devices that are here and not used."""

import logging
from pathlib import Path

import jax
import pytest

from hyla_lm.errors import Unavailable, UserError
from hyla_lm.parallel import mesh


def fails(error: BaseException):
    def no_devices() -> list[jax.Device]:
        raise error

    return no_devices


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    mesh.check_devices.cache_clear()


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        (
            "tpu",
            RuntimeError("no libtpu.so (set JAX_PLATFORMS='' to choose)\nmore"),
            "find here (no libtpu.so): pip install 'hyla_lm[tpu]' on a machine that has them, or",
        ),
        ("cuda", AssertionError(), "find here: pip install 'hyla_lm[gpu]'"),
        ("tppu", RuntimeError("'tppu' is not known"), "('tppu' is not known): unset JAX_PLATFORMS"),
    ],
)
def test_devices_asked_for_and_not_here_are_one_sentence(
    asked: str, error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", asked)
    monkeypatch.setattr(jax, "devices", fails(error))
    with pytest.raises(UserError) as raised:
        mesh.all_devices()
    assert says in str(raised.value) and f"JAX_PLATFORMS={asked}" in str(raised.value)
    assert not isinstance(raised.value, Unavailable)


def test_devices_that_another_process_holds_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(jax, "devices", fails(RuntimeError("the TPU is already in use")))
    with pytest.raises(Unavailable, match=r"the TPU is already in use.*JAX_PLATFORMS=cpu"):
        mesh.all_devices()


@pytest.mark.parametrize(("kind", "extra"), [("TPU_FILES", "tpu"), ("NVIDIA_FILES", "gpu")])
def test_a_device_that_is_not_used_is_told_once(
    kind: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "device0").touch()
    for files in ("TPU_FILES", "NVIDIA_FILES"):
        monkeypatch.setattr(mesh, files, (f"{tmp_path}/nothing*",))
    monkeypatch.setattr(mesh, kind, (f"{tmp_path}/device*",))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with caplog.at_level(logging.WARNING):
        mesh.check_devices()
        assert not caplog.messages, "the CPU was chosen"
        mesh.check_devices.cache_clear()
        monkeypatch.delenv("JAX_PLATFORMS")
        mesh.check_devices()
        mesh.check_devices()
    [line] = caplog.messages
    assert f"pip install 'hyla_lm[{extra}]'" in line and "JAX_PLATFORMS=cpu" in line
