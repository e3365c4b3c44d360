"""Asks where softmax leads on text: at bigrams that stood in the document before, or elsewhere.

    python -m docs.studies.text_recall --rows=runs/records/rows --workdir=runs/text_recall

Trains runs of the record book again, the tuning run of each method first, and scores each token of
the validation rows. A run is a file of docs/results/text_recall; one that has its file is not
trained again.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from docs.studies.records import (
    RESULTS,
    SEEDS,
    STEPS,
    TUNING_SEED,
    TUNING_STEPS,
    Setting,
    best_rate,
    keep,
    read_all,
    train_anew,
)
from hyla_lm import ending
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.restored import open_run
from hyla_lm.tasks.language_model import LanguageModelTask, unpack
from hyla_lm.tools.compare.budget import LN2

FOLDER = RESULTS.with_name("text_recall")
METHODS = ("softmax", "hyla", "linear")
RUNS = ((TUNING_STEPS, TUNING_SEED), *((STEPS, seed) for seed in SEEDS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what is missing and returns a status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser("text_recall", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="rows of records_corpus.py")
    parser.add_argument("--workdir", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--size", default="500k", help="name of a file in gin/records")
    options = parser.parse_args(arguments)

    def study() -> None:
        for steps, seed in RUNS:
            for method in METHODS:
                rate = best_rate(read_all(), options.size, method)
                setting = Setting(options.size, method, rate, steps, seed)
                measure(setting, options.rows, options.workdir / setting.name)

    return ending.run("text_recall", study)


def measure(setting: Setting, rows: Path, folder: Path) -> None:
    """Trains a run and writes its tokens and bits, in repeated bigrams and in all others."""
    path = FOLDER / f"{setting.name}.json"
    if path.exists():
        return
    costs = train_anew(setting, rows, folder)
    del costs["is_sound"]
    keep(path, {**vars(setting), **costs, **scored(folder)})
    shutil.rmtree(folder / "checkpoints")


def scored(folder: Path) -> dict[str, dict[str, float]]:
    """Tokens and bits of the validation rows, by whether the token's bigram was seen before."""
    run = open_run(str(folder), None, (), (), jax.local_devices()[:1], False)
    program, task = run.program, run.program.task
    assert isinstance(task, LanguageModelTask)
    loss = jax.jit(task.loss_by_token(program.model))
    shard = BatchShard(program.experiment.train.batch_size, 0)
    tokens, bits = np.zeros(2), np.zeros(2)
    for batch in task.evaluation_sets(shard, final=True)[""]:
        nats_BxT = np.asarray(loss(run.params, program.to_devices(batch))[1])
        parts = unpack(jax.numpy.asarray(batch["tokens"]), task.bos)
        input_BxT, target_BxT, weight_BxT, segment_BxT = map(np.asarray, parts)
        weight_BxT = weight_BxT * (batch["row"] >= 0)[:, None]
        seen_BxT = seen_before(input_BxT, target_BxT, segment_BxT)
        for index, is_in_BxT in enumerate((seen_BxT, ~seen_BxT)):
            tokens[index] += (weight_BxT * is_in_BxT).sum()
            bits[index] += (nats_BxT * weight_BxT * is_in_BxT).sum() / LN2
    return {
        name: {"tokens": int(tokens[index]), "bits": round(float(bits[index]), 1)}
        for index, name in enumerate(("seen_before", "other"))
    }


def seen_before(
    input_BxT: np.ndarray, target_BxT: np.ndarray, segment_BxT: np.ndarray
) -> np.ndarray:
    """Whether the same input and target stood earlier in the row, in the same document."""
    same_BxTxT = np.ones((*input_BxT.shape, input_BxT.shape[1]), bool)
    for ids_BxT in (input_BxT, target_BxT, segment_BxT):
        same_BxTxT &= ids_BxT[:, :, None] == ids_BxT[:, None, :]
    return np.asarray(np.tril(same_BxTxT, -1).any(axis=2))


if __name__ == "__main__":
    ending.process(main)
