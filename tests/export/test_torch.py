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
from hyla_lm.data.preparation import write_rows
from hyla_lm.export.folder import write_folder
from hyla_lm.export.load import load
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.input.prepared import Rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import POSITIONS
from tests.conftest import SEQUENCE_LENGTH, sentences
from tests.data.conftest import with_special
from tests.export.conftest import TEXT, make_model
from tests.golden import torch_models
from tests.model.small_model import QUICK_COMPILE
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.torch
# float32 on both sides and logits of order 10 or less: sums in another order, magnified by RMSHead
# where all heads are near 0. Most agree to 1e-6.
TOLERANCE = 1e-4
PROMPTS = [TEXT, "ten", "kast dun"]
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


def cached_logits(folder: Path, ids_BxT: np.ndarray, piece: int) -> np.ndarray:
    """Logits of rows that are read in pieces, with the keys and values of earlier ones kept."""
    import torch
    from transformers import DynamicCache

    decoder, cache = module_of(folder).load(folder), DynamicCache()
    with torch.no_grad():
        embedded = [decoder.embed(ids) for ids in torch.from_numpy(ids_BxT).split(piece, 1)]
        read = [decoder.states(part, cache=cache)[-1] for part in embedded]
        return torch.cat([decoder.logits(state) for state in read], 1).numpy()


def jax_logits(model: LoadedModel, ids_BxT: np.ndarray) -> np.ndarray:
    decode = jax.jit(model.decoder.apply, compiler_options=QUICK_COMPILE)
    with jax.default_matmul_precision("highest"):
        return np.asarray(decode({"params": model.params}, jnp.asarray(ids_BxT)))


def auto_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


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


def test_transformers_encode_decode_and_generate_alike(exported: Path) -> None:
    from transformers import AutoTokenizer, pipeline

    model = load(str(exported))
    auto = auto_model(exported)
    tokenizer = AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
    for text in (TEXT, "", "  two  spaces ", "a <s> b</s>\n", "ünknown ☃"):
        assert tokenizer.encode(text) == model.ids(text)
        assert tokenizer.encode(text, add_special_tokens=False) == model.ids(text)[1:]
        decoded = tokenizer.decode(model.ids(text), skip_special_tokens=True)
        assert decoded == model.tokenizer.decode(model.ids(text))
        joined = [tokenizer.decode(model.ids(text)[part]) for part in (slice(2), slice(2, None))]
        assert "".join(joined) == decoded
    assert tokenizer.model_max_length == SEQUENCE_LENGTH
    expected = [text + model.generate(text, max_tokens=6, temperature=0) for text in PROMPTS]
    prompts = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    for options in ({}, {"use_cache": False}):
        ids = auto.generate(**prompts, max_new_tokens=6, do_sample=False, **options)
        assert tokenizer.decode(ids, skip_special_tokens=True) == expected
    generate = pipeline("text-generation", model=auto, tokenizer=tokenizer)
    found = generate(PROMPTS, max_new_tokens=6, do_sample=False)
    assert [text["generated_text"] for [text] in found] == expected


def test_ids_without_a_mask_generate_alike_where_pad_begins_texts(tmp_path: Path) -> None:
    import torch

    model = make_model(with_special(tmp_path / "t5", bos_id=-1, eos_id=1, pad_id=0, unk_id=2))
    write_folder(model, str(tmp_path / "out"))
    auto = auto_model(tmp_path / "out")
    options = dict(max_new_tokens=1, output_logits=True, return_dict_in_generate=True)
    generated = auto.generate(torch.tensor([model.ids(TEXT)]), **options)
    np.testing.assert_allclose(generated.logits[0][0], model.logits(TEXT)[-1], atol=TOLERANCE)


def test_transformers_takes_embedded_tokens_and_gives_logits_codes_and_states(
    exported: Path,
) -> None:
    import torch

    model = load(str(exported))
    auto = auto_model(exported)
    ids = torch.tensor([model.ids(TEXT)])
    embedded = auto.get_input_embeddings()(ids)
    with torch.no_grad():
        plain = auto(ids)
        full = auto(inputs_embeds=embedded, output_attentions=True, output_hidden_states=True)
    assert plain.attentions is None and plain.hidden_states is None
    np.testing.assert_allclose(plain.logits, jax_logits(model, ids.numpy()), atol=TOLERANCE)
    torch.testing.assert_close(full.logits, plain.logits, rtol=0, atol=0)
    for code, expected in zip(full.attentions, model.latent_codes(TEXT).values(), strict=True):
        np.testing.assert_allclose(code[0].numpy(), expected, atol=TOLERANCE)
    first, *_, last = full.hidden_states
    torch.testing.assert_close(first, embedded)
    assert len(full.hidden_states) == 1 + model.config.num_layers
    torch.testing.assert_close(auto.decoder.logits(last), full.logits)


def test_a_low_rank_adapter_trains_and_the_merged_model_loads_again(
    exported: Path, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer

    targets = ["query", "value", "up"]
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=targets)
    adapted = get_peft_model(auto_model(exported), config)
    optimizer = torch.optim.Adam(adapted.parameters(), 0.03)
    ids = torch.from_numpy(random_ids(load(str(exported)), 2, 9))
    losses = []
    for _ in range(10):
        output = adapted(input_ids=ids, labels=ids)
        losses.append(output.loss)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    predicted = output.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    torch.testing.assert_close(output.loss, -predicted.mean())
    assert losses[-1] < losses[0] - 0.1
    with torch.no_grad():
        expected = adapted(input_ids=ids).logits.numpy()
    adapted.merge_and_unload().save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(exported, trust_remote_code=True).save_pretrained(tmp_path)
    for found in (
        torch_logits(tmp_path, ids.numpy()),
        jax_logits(load(str(tmp_path)), ids.numpy()),
    ):
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_checkpointed_gradients_are_those_of_a_pass_that_keeps_all(exported: Path) -> None:
    import torch

    auto = auto_model(exported).train()
    ids = torch.from_numpy(random_ids(load(str(exported)), 2, 9))
    runs: list[int] = []
    auto.decoder.blocks[1].register_forward_pre_hook(lambda *_: runs.append(1))

    def gradients() -> list[np.ndarray]:
        auto.zero_grad()
        auto(ids, labels=ids).loss.backward()
        return [parameter.grad.numpy().copy() for parameter in auto.parameters()]

    expected = gradients()
    auto.gradient_checkpointing_enable()
    for found, gradient in zip(gradients(), expected, strict=True):
        np.testing.assert_array_equal(found, gradient)
    assert len(runs) == 1 + 2
    with pytest.raises(ValueError, match="use_cache=False"):
        auto(ids, use_cache=True)


@pytest.mark.parametrize("tied", [False, True])
def test_a_vocabulary_grows(tokenizer: Tokenizer, tied: bool, tmp_path: Path) -> None:
    import torch

    model = make_model(tokenizer, tie_embeddings=tied)
    write_folder(model, str(tmp_path / "out"))
    auto = auto_model(tmp_path / "out")
    ids = torch.from_numpy(random_ids(model, 1, 9))
    size = tokenizer.vocab_size
    with torch.no_grad():
        before = auto(ids).logits
        auto.resize_token_embeddings(size + 3)
        after = auto(torch.cat([ids, torch.tensor([[size + 2]])], 1)).logits
    assert after.shape[-1] == auto.config.vocab_size == size + 3
    torch.testing.assert_close(after[:, :-1, :size], before)


def test_the_harness_measures_the_bits_per_byte_of_evaluate(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a document of whole rows; evaluate also counts its EOS, which starts another row."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval brings 24 packages: install it")
    from lm_eval.models.huggingface import HFLM

    model = load(str(exported))
    words = sentences(300, 20).split()
    texts = (" ".join(words[:count]) for count in range(40, 120))
    text = next(text for text in texts if len(model.tokenizer.encode(text)) % SEQUENCE_LENGTH == 0)
    rows = {"split": "validation", "source": "tests", "sequence_length": SEQUENCE_LENGTH, "seed": 0}
    write_rows([text], model.tokenizer, tmp_path / "rows", **rows)
    sets = f"--gin.LanguageModel.validation_sets=own={tmp_path / 'rows'}"
    assert main(["evaluate", f"--workdir={exported.parent / 'run'}", sets]) == 0
    found = json.loads(capsys.readouterr().out)["own_bits_per_byte"]
    logits = model.logits(model.ids(text)[-1:])[0]
    eos_bits = (np.logaddexp.reduce(logits) - logits[model.tokenizer.eos]) / np.log(2)

    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    task = {
        "task": "own",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "text.jsonl")}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    harness = HFLM(pretrained=str(exported), trust_remote_code=True, device="cpu")
    results = lm_eval.simple_evaluate(harness, tasks=[task], bootstrap_iters=0)["results"]
    measured = results["own"]["bits_per_byte,none"]
    np.testing.assert_allclose(measured, found - eos_bits / len(text), rtol=1e-4)


MODELS = st.fixed_dictionaries(
    {
        "attention": st.lists(st.sampled_from(EXPORTED), min_size=1, max_size=2).map(tuple),
        "num_heads": st.integers(1, 3),
        "head_dim": st.sampled_from([2, 4, 6]),
        "value_dim": st.sampled_from([None, 1, 3, 8]),
        "value_activation": st.sampled_from([None, "silu", "gelu", "gelu_erf", "sigmoid", "tanh"]),
        "positions": st.sampled_from(POSITIONS),
        "rope_theta": st.sampled_from([10_000.0, 100.0]),
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
@given(fields=MODELS, length=st.integers(1, 20), piece=st.integers(1, 20))
def test_any_small_model_has_equal_logits(
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    fields: dict[str, Any],
    length: int,
    piece: int,
) -> None:
    model = make_model(tokenizer, **fields)
    folder = tmp_path_factory.mktemp("any") / "out"
    write_folder(model, str(folder))
    ids = random_ids(model, 2, length)
    expected = jax_logits(model, ids)
    np.testing.assert_allclose(torch_logits(folder, ids), expected, atol=TOLERANCE)
    np.testing.assert_allclose(cached_logits(folder, ids, piece), expected, atol=TOLERANCE)


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
