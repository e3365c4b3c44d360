"""A StableHLO file: the model with its parameters, which a process without hyla_lm runs."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest

import hyla_lm
from hyla_lm.cli.main import main
from hyla_lm.export import stablehlo
from hyla_lm.input.tokenizer import Tokenizer
from tests.export.conftest import TEXT, make_model

# The reference kernel and the blocked one sum in another order, in float32.
TOLERANCE = 1e-5
RUN = """
import sys, jax.export, numpy as np
model = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
rows = [np.load(path) for path in sys.argv[2:-1]]
np.savez(sys.argv[-1], *[model.call(row) for row in rows])
print(*model.platforms, *[name for name in sys.modules if name.startswith("hyla_lm")])
"""


def test_a_process_without_hyla_lm_runs_batches_of_any_size_and_length(
    trained_run: str, tmp_path: Path
) -> None:
    out = tmp_path / "model.stablehlo"
    arguments = [f"--workdir={trained_run}", f"--output={out}", "--format=stablehlo"]
    assert main(["export", *arguments]) == 0
    model = hyla_lm.load(trained_run)
    row = np.array(model.ids(TEXT), np.int32)
    batches = [row[None], np.stack([row[:5], row[-5:], row[:5]])]
    paths = [tmp_path / f"{i}.npy" for i in range(2)]
    for path, batch in zip(paths, batches, strict=True):
        np.save(path, batch)
    done = subprocess.run(
        [sys.executable, "-c", RUN, out, *paths, tmp_path / "logits.npz"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout.split() == ["cpu", "tpu"]
    with np.load(tmp_path / "logits.npz") as found:
        for logits, batch in zip(found.values(), batches, strict=True):
            expected = np.stack([model.logits(ids) for ids in batch])
            np.testing.assert_allclose(logits, expected, atol=TOLERANCE)


def test_a_table_of_positions_bounds_the_length(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer, positions="learned", max_length=6, num_layers=1)
    exported = jax.export.deserialize(bytearray(stablehlo.stablehlo(model)))
    assert exported.call(np.ones((2, 6), np.int32)).shape == (2, 6, tokenizer.vocab_size)
    with pytest.raises(ValueError, match="shapes"):
        exported.call(np.ones((2, 7), np.int32))


def test_a_file_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine"
    out.write_text("mine")
    arguments = ["--workdir=nowhere", f"--output={out}", "--format=stablehlo"]
    assert main(["export", *arguments]) == 2
    assert capsys.readouterr().err == f"hyla-lm: --output={out} exists: give a new file.\n"
    assert out.read_text() == "mine"
