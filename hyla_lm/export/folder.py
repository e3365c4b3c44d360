"""An exported folder: parameters, config.json, tokenizer and the code that PyTorch needs."""

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.export.card import model_card
from hyla_lm.export.description import (
    MODEL_TYPE,
    check_exportable,
    describe_model,
    model_config_of,
    special_ids,
    tokenizer_config,
)
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.export.tensors import flat_parameters, from_tensors, nested_parameters, to_tensors
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.storage import as_path, bucket_of, read_whole

CONFIG, PARAMETERS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.model"
CODE = ("modeling_hyla.py", "transformers_hyla.py")


def is_exported(path: str) -> bool:
    """Whether a folder is one that `write_folder` made, and not a run."""
    content = read_whole(as_path(path) / CONFIG)
    return content is not None and _parsed(content).get("model_type") == MODEL_TYPE


def write_folder(model: LoadedModel, output: str, validation: Mapping[str, float]) -> int:
    """Writes the folder, whole or not at all; returns the bytes of its parameters.

    `validation` are metrics for the model card, which may be empty. Raises UserError if `output`
    exists and is not empty, and for a model that PyTorch code here cannot run.
    """
    check_new_folder(output)
    check_exportable(model.config)
    safetensors = _safetensors()
    tensors = to_tensors(flat_parameters(model.params, model.config))
    special = special_ids(model.tokenizer)
    described = describe_model(model.config, model.tokenizer.vocab_size, model.sequence_length)
    texts = {
        CONFIG: _json({**described, **special, "step": model.step}),
        "generation_config.json": _json({**special, "use_cache": False}),
        "tokenizer_config.json": _json(tokenizer_config(model.tokenizer)),
        "README.md": model_card(model, sum(x.size for x in tensors.values()), validation),
    }
    with _made_aside(output) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text)
        for name in CODE:
            shutil.copyfile(Path(__file__).parent / name, folder / name)
        (folder / TOKENIZER).write_bytes(model.tokenizer.content)
        (folder / PARAMETERS).write_bytes(safetensors.save(tensors, {"format": "pt"}))
    return sum(tensor.nbytes for tensor in tensors.values())


def read_folder(path: str) -> LoadedModel:
    """The model of an exported folder; raises UserError for one that is damaged."""
    config, entries = _read_config(path)
    params = nested_parameters(read_parameters(path))
    tokenizer, vocab_size = Tokenizer(str(as_path(path) / TOKENIZER)), entries["vocab_size"]
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{tokenizer.path} has {tokenizer.vocab_size} pieces but {CONFIG} beside it says "
            f"{vocab_size}: put the model's own tokenizer back."
        )
    decoder = Decoder(config, Tokens(vocab_size))
    return LoadedModel(decoder, params, tokenizer, entries["sequence_length"], entries["step"])


def read_parameters(path: str) -> dict[str, np.ndarray]:
    """Parameters of an exported folder by path, such as blocks/block_0/attention/query/kernel.

    Each layer has its own, also if the run had scanned layers. Raises UserError for a folder that
    is damaged.
    """
    (config, entries), file = _read_config(path), as_path(path) / PARAMETERS
    content = read_whole(file)
    if content is None:
        raise UserError(f"{file} does not exist: export again.")
    safetensors = _safetensors()
    try:
        tensors = safetensors.load(content)
    except Exception as error:  # a class of the library in Rust
        raise UserError(f"{file} is damaged ({error}): export again.") from error
    return from_tensors(tensors, config, entries["vocab_size"], str(file))


def _read_config(path: str) -> tuple[ModelConfig, dict[str, Any]]:
    """The settings of the model in config.json, and all its entries."""
    file = as_path(path) / CONFIG
    content = read_whole(file)
    if content is None:
        raise UserError(f"{path} holds no {CONFIG}: give a folder that hyla-lm export made.")
    entries = _parsed(content)
    for name in ("vocab_size", "sequence_length", "step"):
        if type(entries.get(name)) is not int or entries[name] < 0:
            raise UserError(f"{file} describes no model of hyla_lm ({name!r}): export again.")
    return model_config_of(entries, str(file)), entries


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise UserError(
            "exported folders need safetensors: pip install 'hyla_lm[export]'."
        ) from error
    return safetensors.numpy


def check_new_folder(output: str) -> None:
    """Raises UserError for a folder in a bucket or that is not empty, and without safetensors."""
    _safetensors()
    if bucket_of(output):
        raise UserError(f"--output={output} is in a bucket: export to a disk and copy the folder.")
    folder = Path(output).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output={output} is not empty: give a new folder.")


@contextmanager
def _made_aside(output: str) -> Iterator[Path]:
    """A folder to fill, which appears as `output` when the block ends; an error removes it."""
    folder = Path(output).expanduser().absolute()
    aside = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.partial"
    try:
        aside.mkdir(parents=True)
        yield aside
        aside.rename(folder)
    except OSError as error:
        raise UserError(
            f"--output={output} cannot be written ({error.strerror or error}): give another folder."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
