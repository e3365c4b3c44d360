"""Processes that form one run on this machine."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests import preloaded

Finished = tuple[int, str, str]


def free_port() -> int:
    """A port that is free, below those that connections are given."""
    while True:
        port = random.randrange(10000, 30000)
        with suppress(OSError), socket.create_server(("", port)):
            return port


def environment(devices: int, **more: object) -> dict[str, str]:
    named = {"JAX_NUM_CPU_DEVICES": devices, "JAX_PLATFORMS": "cpu", **more}
    return {**os.environ, **{name: str(value) for name, value in named.items()}}


def start_processes(
    commands: list[list[str]], devices: int, folders: Sequence[Path] = (), **more: object
) -> list[subprocess.Popen[str]]:
    """Processes that form one run, each in its folder where some are given."""
    joined = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", **more}
    joined.setdefault("JAX_NUM_PROCESSES", len(commands))
    return [
        preloaded.Popen(
            [sys.executable, *command],
            env=environment(devices, **{"JAX_PROCESS_ID": index, **joined}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folders[index] if folders else None,
        )
        for index, command in enumerate(commands)
    ]


def run_processes(
    commands: list[list[str]], devices: int, folders: Sequence[Path] = (), **more: object
) -> list[Finished]:
    """Status, standard output and standard error of processes that form one run."""
    started = start_processes(commands, devices, folders, **more)
    outputs = [process.communicate(timeout=300) for process in started]
    return [(p.returncode, *output) for p, output in zip(started, outputs, strict=True)]


def train_command(gin_file: Path, workdir: Path | str, *bindings: str) -> list[str]:
    return [
        *("-m", "hyla_lm", "train", f"--gin_file={gin_file}", f"--workdir={workdir}"),
        *(f"--gin.{binding}" for binding in bindings),
    ]
