"""A tiny corpus, its tokenizer and rows, and the gin file of a tiny run: made once, in seconds."""

import gc
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import jax
import pytest

import hyla_lm.export.load  # noqa: F401  before a fixture replaces lay_out
from hyla_lm.attention import blocked
from hyla_lm.attention.linear import chunked
from hyla_lm.data.preparation import write_rows
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.prepared import Rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.run import program
from hyla_lm.run.program import Program

# Tests run on CPU, also where libtpu is installed, which looks for TPUs and says so, and on a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
# Workers of pytest-xdist have a core each: two that share both wait for each other's threads.
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
if WORKER and hasattr(os, "sched_setaffinity"):  # not on macOS
    CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {CORES[int(WORKER[2:]) % len(CORES)]})
# Tracing makes many objects that live long. To look through them often took a tenth of the time.
gc.set_threshold(100_000, 50, 100)
# Files that take longest come first, so that workers end together.
LONGEST = (
    *("parallel/test_multihost.py", "docs/test_extending.py", "faults/test_checkpoints.py"),
    *("faults/test_kills.py", "attention/test_blocked.py", "model/test_model.py"),
    *("golden/test_golden_models.py", "attention/test_pallas_tpu.py", "run/test_resume.py"),
    *("evals/populations/test_train_many.py", "parallel/test_mesh.py", "run/test_same_bits.py"),
)
TESTS = Path(__file__).parent
LAY_OUT = program.lay_out
LAID_OUT: dict[str, Program] = {}
SEQUENCE_LENGTH = 16
VOCAB_SIZE = 320
TINY = """
TrainConfig.task = @LanguageModel()
TrainConfig.steps = 12
TrainConfig.batch_size = 8
TrainConfig.eval_every = 4
LogConfig.every = 3
CheckpointConfig.every = 5
LanguageModel.data = @Rows()
LanguageModel.sequence_length = {sequence_length}
LanguageModel.logit_chunk = 8
LanguageModel.closing_prompt = None
Rows.train = "{rows.train}"
Rows.validation = "{rows.validation}"
Rows.tokenizer = "{rows.tokenizer}"
ModelConfig.num_layers = 1
ModelConfig.model_dim = 16
ModelConfig.num_heads = 2
ModelConfig.head_dim = 8
ModelConfig.mlp_dim = 32
ModelConfig.use_bias = False
ModelConfig.attention = "hyla"
ModelConfig.dtype = "float32"
OptimizerConfig.learning_rate = 1e-2
OptimizerConfig.warmup_steps = 2
"""

# The examples of a property are the same in every session, but for those of `make faults`.
hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=100, database=None
)
hypothesis.settings.register_profile(
    "faults", deadline=None, max_examples=2500, database=None, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def sentences(seed: int, count: int) -> str:
    """Text with structure to learn: each word mostly decides the next."""
    rng = random.Random(seed)
    words = [f"{a}{b}{c}" for a in "bdkmt" for b in "aeiou" for c in ("", "n", "st")]
    picked, index = [], 0
    for _ in range(count * 6):
        index = (index * 7 + rng.choice([3, 3, 3, 11])) % len(words)
        picked.append(words[index])
    return " ".join(picked)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope="session", autouse=True)
def compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A program is compiled once a session, by a worker or by a process that a test starts.

    TEST_PROGRAMS names a folder that several sessions share.
    """
    of_session = tmp_path_factory.getbasetemp()
    own = (of_session.parent if WORKER else of_session) / "programs"
    programs = Path(os.environ.get("TEST_PROGRAMS", own))
    programs.mkdir(exist_ok=True)
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    for name, value in settings.items():
        os.environ[name] = value
    jax.config.update("jax_compilation_cache_dir", settings["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture(scope="module", autouse=True)
def earlier_files_are_settled() -> None:
    """What they left, mostly programs, is not looked at again by whoever collects garbage."""
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Folders of rows of 16 tokens: about 600 for training and 40 for validation."""
    home = tmp_path_factory.mktemp("tiny")
    documents = [sentences(seed, 1 + seed % 9) for seed in range(200)]
    train_tokenizer(documents, VOCAB_SIZE, home / "tokenizer.model")
    tokenizer = Tokenizer(str(home / "tokenizer.model"))
    splits = {"train": documents[:180], "validation": documents[180:]}
    for split, texts in splits.items():
        write_rows(
            texts,
            tokenizer,
            home / split,
            split=split,
            source="tests",
            sequence_length=SEQUENCE_LENGTH,
            seed=0,
            shards=3 if split == "train" else 1,
        )
    return Rows(
        train=str(home / "train"),
        validation=str(home / "validation"),
        tokenizer=str(home / "tokenizer.model"),
    )


@pytest.fixture(scope="session")
def tokenizer(tiny_rows: Rows) -> Tokenizer:
    return Tokenizer(tiny_rows.tokenizer)


@pytest.fixture
def tiny_gin(tiny_rows: Rows, tmp_path: Path) -> Path:
    """The gin file of a run of 12 steps."""
    path = tmp_path / "tiny.gin"
    path.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks shorter than the rows here, so that each row has several and a part of one."""
    monkeypatch.setattr(blocked, "BLOCK_SIZE", 5)
    monkeypatch.setattr(chunked, "CHUNK_SIZE", 5)


@pytest.fixture
def programs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is traced once a worker; not for tests that change the functions it is made of."""
    monkeypatch.setattr(program, "lay_out", laid_out_once)


def laid_out_once(experiment: Any, task: Any, mesh: jax.sharding.Mesh) -> Program:
    """The program of an experiment, with functions of an earlier one that computes the same."""
    train, log = experiment.train, experiment.log
    of_train = train.task, train.steps, train.batch_size, train.accumulate_steps
    parts = experiment.model, experiment.optimizer, experiment.updates, of_train, train.seed
    key = repr((*parts, log.layers, task.identity(), mesh))
    if key not in LAID_OUT:
        LAID_OUT[key] = LAY_OUT(experiment, task, mesh)
    return replace(LAID_OUT[key], experiment=experiment, task=task)
