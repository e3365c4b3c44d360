"""Weights & Biases, offline: the package itself, its files on this disk, no network."""

import struct
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from hyla_lm.errors import UserError, exit_status
from hyla_lm.logs.sinks import LoggedRun
from hyla_lm.logs.wandb import ID, WandB

wandb = pytest.importorskip("wandb", reason="the sink needs pip install 'hyla_lm[wandb]'")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def records(path: Path) -> list[Any]:
    """What W&B would send: a file of LevelDB's log format, whose header has 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, found = path.read_bytes(), 7, []
    assert len(content) < 32768, "one block, so every record is whole"
    while at + 7 <= len(content):
        _, size, _ = struct.unpack_from("<IHB", content, at)
        found.append(Record.FromString(content[at + 7 : at + 7 + size]))
        at += 7 + size
    return found


def all_sent(folder: Path, processes: int) -> list[Any]:
    """The records of all processes, once W&B's own process has written their ends."""
    deadline = time.monotonic() + 30
    while True:
        paths = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        found = [record for path in paths for record in records(path)]
        if sum(record.HasField("exit") for record in found) == processes:
            return found
        assert time.monotonic() < deadline, [record.WhichOneof("record_type") for record in found]
        time.sleep(0.1)


def history(found: list[Any]) -> dict[str, list[str]]:
    """By key, the JSON of its values, each after its step."""
    values: dict[str, list[str]] = defaultdict(list)
    for record in found:
        row = {
            "/".join(item.nested_key) or item.key: item.value_json for item in record.history.item
        }
        for key, value in row.items():
            values[key].append(value if key == "step" else f"{row.get('step')}: {value}")
    return values


def test_a_resumed_run_is_the_same_one_with_its_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    for first in (0, 10):
        sink = WandB(project="trials").open_sink(LoggedRun(epath.Path(folder), first))
        sink.write(first, {"text/config": "Once"})
        sink.write(first + 1, {"train/loss_nats": 2.5, "text/samples": "upon"})
        sink.close()
    sent = all_sent(folder, 2)
    runs = [record.run for record in sent if record.HasField("run")]
    assert {run.run_id for run in runs} == {(folder / ID).read_text().strip()}
    assert {(run.display_name, run.project) for run in runs} == {("small", "trials")}
    logged = history(sent)
    assert logged["train/loss_nats"] == ["1: 2.5", "11: 2.5"]
    assert not [tag for tag in logged if tag.startswith("text")]


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(UserError, match=r"@WandB\(\) of LogConfig.sinks needs wandb: pip install"):
        WandB().open_sink(LoggedRun(epath.Path("anywhere"), 0))


@pytest.mark.parametrize(
    ("error", "status"),
    [(wandb.errors.CommError("no route"), 69), (wandb.errors.AuthenticationError("no key"), 2)],
)
def test_a_failure_ends_the_run_with_a_sentence(
    error: Exception, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(wandb, "init", fail)
    with pytest.raises(UserError, match=rf"W&B failed \({error}\): .*WANDB_MODE=offline") as told:
        WandB().open_sink(LoggedRun(epath.Path(tmp_path), 0))
    assert exit_status(told.value) == status
