"""Seconds from the command to the first step of the quickstart: make bench-start.

Each start is a process of its own in an empty folder. The first has neither data nor compiled
programs, the second has the data, the third both. The import is that of all a run needs.
Ends with an error where what is kept saves nothing.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORT = "import hyla_lm.train, hyla_lm.config.experiment"
STARTS = (
    ("no data, no compiled programs", "first"),
    ("data, no compiled programs", "second"),
    ("data and compiled programs", "second"),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        imported = min(_seconds_of_import() for _ in range(3))
        print(f"{imported:6.2f} s  import of what a run needs")
        seconds = []
        for number, (name, programs) in enumerate(STARTS):
            seconds.append(_seconds_to_first_step(home, home / programs, home / str(number)))
            print(f"{seconds[-1]:6.2f} s  {name}")
    empty, data, warm = seconds
    print(f"data {empty - data:.1f} s, compiling {data - warm:.1f} s, the rest {warm:.1f} s")
    if not warm < data < empty:
        sys.exit("a start with more kept is not faster")


def _seconds_of_import() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORT], cwd=ROOT, check=True)
    return time.monotonic() - started


def _seconds_to_first_step(home: Path, programs: Path, workdir: Path) -> float:
    command = [sys.executable, "-m", "hyla_lm", "train", "--gin_file=gin/quickstart.gin"]
    bindings = {"LogConfig.every": 1, "SampleCorpus.cache": f"'{home / 'data'}'"}
    command += [f"--gin.{name}={value}" for name, value in bindings.items()]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(programs)}
    started = time.monotonic()
    with subprocess.Popen(
        [*command, f"--workdir={workdir}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 1/"):
                seconds = time.monotonic() - started
                process.kill()
                return seconds
    raise SystemExit(f"the quickstart ended with status {process.returncode} before a step")


if __name__ == "__main__":
    main()
