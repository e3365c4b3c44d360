"""An exported folder: parameters, config.json, tokenizer and the code that PyTorch needs."""

import json
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from hyla_lm.errors import UserError
from hyla_lm.export.description import (
    MODEL_TYPE,
    check_exportable,
    describe_model,
    model_config_of,
    special_ids,
    tokenizer_config,
)
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.export.tensors import flat_parameters, from_tensors, to_tensors
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.package import install
from hyla_lm.storage import as_path, bucket_of, read_whole, storage_errors

CONFIG, PARAMETERS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.model"
CODE = ("modeling_hyla.py", "transformers_hyla.py")


def write_folder(model: LoadedModel, output: str) -> int:
    """Writes the folder, whole or not at all; returns the bytes of its parameters.

    Raises UserError if `output` exists and is not empty, and for a model that PyTorch code here
    cannot run.
    """
    check_new_folder(output)
    check_exportable(model.config)
    safetensors = _safetensors()
    tensors = to_tensors(flat_parameters(model.params, model.config))
    if bad := [name for name, values in tensors.items() if not np.isfinite(values).all()]:
        raise UserError(f"step {model.step} has no numbers in {bad[0]}: take another step.")
    special = special_ids(model.tokenizer)
    described = describe_model(model.config, model.tokenizer.vocab_size, model.sequence_length)
    texts = {
        CONFIG: {**described, **special, "step": model.step},
        "generation_config.json": special,
        "tokenizer_config.json": tokenizer_config(
            model.tokenizer, described["max_position_embeddings"]
        ),
    }
    folder = Path(as_path(output)).absolute()
    with storage_errors(output, "written", "give another folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
            whole = Path(aside) / folder.name
            whole.mkdir()
            for name, entries in texts.items():
                (whole / name).write_text(json.dumps(entries, indent=1) + "\n")
            for name in CODE:
                shutil.copyfile(Path(__file__).parent / name, whole / name)
            (whole / TOKENIZER).write_bytes(model.tokenizer.content)
            (whole / PARAMETERS).write_bytes(safetensors.save(tensors, {"format": "pt"}))
            whole.rename(folder)
    return sum(tensor.nbytes for tensor in tensors.values())


def exported_entries(path: str) -> dict[str, Any]:
    """The entries of config.json in an exported folder; empty for another, such as a run."""
    try:
        entries = json.loads(read_whole(as_path(path) / CONFIG) or b"")
    except (ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) and entries.get("model_type") == MODEL_TYPE else {}


def read_folder(path: str, entries: dict[str, Any]) -> LoadedModel:
    """The model of a folder with these entries; raises UserError for one that is damaged."""
    folder = as_path(path)
    config = model_config_of(entries, str(folder / CONFIG))
    tokenizer, vocab_size = Tokenizer(str(folder / TOKENIZER)), entries["vocab_size"]
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{tokenizer.path} has {tokenizer.vocab_size} pieces but {CONFIG} beside it says "
            f"{vocab_size}: put the model's own tokenizer back."
        )
    safetensors = _safetensors()
    try:
        tensors = safetensors.load(read_whole(folder / PARAMETERS) or b"")
    except Exception as error:  # a class of the library in Rust
        raise UserError(
            f"{folder / PARAMETERS} is damaged or gone ({error}): export again."
        ) from error
    flat = from_tensors(tensors, config, vocab_size, str(folder / PARAMETERS))
    params = jax.tree.map(jnp.asarray, unflatten_dict(flat, sep="/"))
    decoder, length = Decoder(config, Tokens(vocab_size)), entries["sequence_length"]
    return LoadedModel(decoder, params, tokenizer, length, entries.get("step", 0))


def check_new_folder(output: str) -> None:
    """Raises UserError for a folder in a bucket or that is not empty, and without safetensors."""
    _safetensors()
    if bucket_of(output):
        raise UserError(f"--output={output} is in a bucket: export to a disk and copy the folder.")
    folder = Path(as_path(output))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output={output} is not empty: give a new folder.")


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise UserError(f"exported folders need safetensors: {install('export')}.") from error
    return safetensors.numpy
