"""What checksums cost of a save: seconds of a whole checkpoint of 50M parameters, and of its sums.

Usage: bench_checkpoint.py [GIN_FILE]. Ends with 1 if the sums take more than LARGEST_SHARE.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax
from etils import epath

from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.checkpoint.checksums import checksums
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.run.program import checked_mesh, lay_out
from hyla_lm.train_step import TrainState

REPEATS = 5
LARGEST_SHARE = 0.06
DATA = {"streams": [{"rows_read": 0}], "window": {}}


def like_trained(state: TrainState) -> TrainState:
    """The state with moments that do not compress better than those of training."""
    leaves, tree = jax.tree.flatten(state)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    pairs = zip(keys, leaves, strict=True)
    drawn = [jax.random.normal(key, leaf.shape).astype(leaf.dtype) for key, leaf in pairs]
    return jax.tree.unflatten(tree, drawn)


def main() -> int:
    gin_file = sys.argv[1] if len(sys.argv) > 1 else "gin/c4_50m_hyla.gin"
    experiment = read_experiment([gin_file], [])
    program = lay_out(
        experiment, experiment.train.task.planned_objective(), checked_mesh(experiment)
    )
    with jax.set_mesh(program.mesh), tempfile.TemporaryDirectory() as folder:
        state = jax.block_until_ready(like_trained(program.init()))
        checkpoints = Checkpointer(epath.Path(Path(folder) / "checkpoints"), keep=1)
        saves, sums = [], []
        for step in range(REPEATS):
            started = time.monotonic()
            checkpoints.save(step, state, DATA, {"identity": {}, "gin": "", "versions": {}})
            checkpoints.wait()
            saves.append(time.monotonic() - started)
            started = time.monotonic()
            checksums(state)
            sums.append(time.monotonic() - started)
        checkpoints.close()
    megabytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e6
    share = statistics.median(sums) / statistics.median(saves)
    print(f"{megabytes:,.0f} MB in {len(jax.tree.leaves(state))} arrays")
    print(f"save {statistics.median(saves):.2f} s, checksums {statistics.median(sums):.3f} s")
    print(f"share {share:.2%} (at most {LARGEST_SHARE:.0%})")
    return int(share > LARGEST_SHARE)


if __name__ == "__main__":
    sys.exit(main())
