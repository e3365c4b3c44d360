"""PyTorch and transformers run what was exported, with the logits and ids of the trainer."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyla_lm.attention.spec import VARIANTS
from hyla_lm.cli.main import main
from hyla_lm.export.folder import write_folder
from hyla_lm.export.load import load
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.input.prepared import Rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import POSITIONS
from tests.conftest import SEQUENCE_LENGTH
from tests.export.conftest import TEXT, make_model
from tests.golden import torch_models
from tests.model.small_model import QUICK_COMPILE
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.torch
# float32 on both sides and logits of order 10 or less: sums in another order, magnified by RMSHead
# where all heads are near 0. Most agree to 1e-6.
TOLERANCE = 1e-4
EXPORTED = [name for name, spec in VARIANTS.items() if spec.pair_network is None]


@pytest.fixture(scope="module", autouse=True)
def no_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """transformers copies the code of a folder to its own; here into a temporary one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_HUB_OFFLINE", "1")
        patched.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        yield


def module_of(folder: Path) -> ModuleType:
    """modeling_hyla.py of a folder, as a program that has only the folder imports it."""
    found = util.spec_from_file_location("modeling_hyla", folder / "modeling_hyla.py")
    assert found is not None and found.loader is not None
    module = util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def torch_logits(folder: Path, ids_BxT: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        return module_of(folder).load(folder)(torch.from_numpy(ids_BxT)).numpy()


def jax_logits(model: LoadedModel, ids_BxT: np.ndarray) -> np.ndarray:
    decode = jax.jit(model.decoder.apply, compiler_options=QUICK_COMPILE)
    with jax.default_matmul_precision("highest"):
        return np.asarray(decode({"params": model.params}, jnp.asarray(ids_BxT)))


def random_ids(model: LoadedModel, rows: int, length: int) -> np.ndarray:
    rng = np.random.default_rng(length)
    return rng.integers(model.tokenizer.vocab_size, size=(rows, length))


@pytest.fixture(scope="module")
def exported(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported folder of a run of two steps, whose layers have three kinds of attention."""
    home = tmp_path_factory.mktemp("run")
    settings = ["TrainConfig.steps=2", "OptimizerConfig.warmup_steps=1"]
    settings += ["ModelConfig.num_layers=3", "ModelConfig.attention=softmax,linear,hyla"]
    assert train(write_gin(home, tiny_rows), home / "run", *settings) == 0
    assert main(["export", f"--workdir={home / 'run'}", f"--output={home / 'out'}"]) == 0
    return home / "out"


def test_runs_have_equal_logits_in_torch_and_in_transformers(exported: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = load(str(exported))
    ids = random_ids(model, 3, 2 * SEQUENCE_LENGTH + 1)
    expected = jax_logits(model, ids)
    np.testing.assert_allclose(torch_logits(exported, ids), expected, atol=TOLERANCE)
    auto = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True)
    with torch.no_grad():
        found = auto(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_transformers_encode_decode_and_generate_alike(exported: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = load(str(exported))
    auto = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
    for text in (TEXT, "", "  two  spaces ", "a <s> b</s>\n", "ünknown ☃"):
        assert tokenizer.encode(text) == model.ids(text)
        assert tokenizer.encode(text, add_special_tokens=False) == model.ids(text)[1:]
        decoded = tokenizer.decode(model.ids(text), skip_special_tokens=True)
        assert decoded == model.tokenizer.decode(model.ids(text))
    prompt = tokenizer(TEXT, return_tensors="pt")
    ids = auto.generate(**prompt, max_new_tokens=6, do_sample=False)[0]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert text == TEXT + model.generate(TEXT, max_tokens=6, temperature=0)
    with pytest.raises(ValueError, match="use_cache=False"):
        auto.generate(**prompt, max_new_tokens=2, use_cache=True)


def test_what_transformers_trained_and_saved_loads_again(exported: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    auto = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True)
    ids = torch.from_numpy(random_ids(load(str(exported)), 2, 9))
    output = auto(ids, labels=ids)
    predicted = output.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    torch.testing.assert_close(output.loss, -predicted.mean())
    output.loss.backward()
    with torch.no_grad():
        for parameter in auto.parameters():
            parameter -= 0.1 * parameter.grad
    auto.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(exported, trust_remote_code=True).save_pretrained(tmp_path)
    with torch.no_grad():
        expected = auto(ids).logits.numpy()
        again = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
        np.testing.assert_array_equal(again(ids).logits.numpy(), expected)
    np.testing.assert_array_equal(torch_logits(tmp_path, ids.numpy()), expected)
    model = load(str(tmp_path))
    np.testing.assert_allclose(jax_logits(model, ids.numpy()), expected, atol=TOLERANCE)


MODELS = st.fixed_dictionaries(
    {
        "attention": st.lists(st.sampled_from(EXPORTED), min_size=1, max_size=2).map(tuple),
        "num_heads": st.integers(1, 3),
        "head_dim": st.sampled_from([2, 4, 6]),
        "value_dim": st.sampled_from([None, 1, 3, 8]),
        "value_activation": st.sampled_from([None, "silu", "gelu", "gelu_erf", "sigmoid", "tanh"]),
        "positions": st.sampled_from(POSITIONS),
        "relative_buckets": st.integers(2, 9),
        "relative_max_distance": st.integers(5, 20),
        "max_length": st.just(32),
        "feedforward": st.sampled_from(["gelu", "swiglu", "moe"]),
        "num_experts": st.integers(2, 4),
        "norm": st.sampled_from(["layer", "rms"]),
        "qk_norm": st.booleans(),
        "gated_attention": st.booleans(),
        "logit_soft_cap": st.sampled_from([None, 0.5, 30.0]),
        "use_bias": st.booleans(),
        "tie_embeddings": st.booleans(),
        "scale_tied_logits": st.booleans(),
    }
)


@settings(max_examples=25)
@given(fields=MODELS, length=st.integers(1, 20))
def test_any_small_model_has_equal_logits(
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    fields: dict[str, Any],
    length: int,
) -> None:
    model = make_model(tokenizer, **fields)
    folder = tmp_path_factory.mktemp("any") / "out"
    write_folder(model, str(folder))
    ids = random_ids(model, 2, length)
    np.testing.assert_allclose(torch_logits(folder, ids), jax_logits(model, ids), atol=TOLERANCE)


@pytest.mark.parametrize("name", torch_models.MODELS)
def test_the_module_gives_the_logits_that_are_kept(name: str) -> None:
    from tests.golden.make_torch_goldens import torch_logits

    _, expected = torch_models.read(name)
    # The same program in float32, perhaps on another processor.
    np.testing.assert_allclose(torch_logits(torch_models.MODELS[name]), expected, atol=1e-5)


def test_torch_alone_is_enough(folder: Path) -> None:
    code = (
        "import sys; sys.modules['transformers'] = None; import torch, modeling_hyla; "
        "print(*modeling_hyla.load('.')(torch.ones(2, 3, dtype=int)).shape, "
        "*[name for name in sys.modules if name.startswith(('jax', 'hyla_lm'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    assert done.stdout.split() == ["2", "3", str(vocabulary)]
