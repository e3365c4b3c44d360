"""StableHLO of a model: one file with its parameters, which JAX runs without hyla_lm."""

from dataclasses import replace
from importlib.util import find_spec

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.storage import as_path, bucket_of, write_whole

PLATFORMS = ("cpu", "tpu")
LARGEST_BYTES = 2**31 - 2**24  # FlatBuffers, which hold an exported function, end at 2 GiB


def write_stablehlo(model: LoadedModel, output: str) -> int:
    """Writes the file, whole or not at all; returns its bytes."""
    check_new_file(output)
    content = stablehlo(model)
    write_whole(output, content)
    return len(content)


def check_new_file(output: str) -> None:
    """Raises UserError if the file exists, its folder does not, or it cannot be serialized."""
    if find_spec("flatbuffers") is None:
        raise UserError("--format=stablehlo needs flatbuffers: pip install 'hyla_lm[export]'.")
    path = as_path(output)
    if path.exists():
        raise UserError(f"--output={output} exists: give a new file.")
    if not bucket_of(output) and not path.parent.is_dir():
        raise UserError(f"--output={output} lies in no folder: make {path.parent} first.")


def stablehlo(model: LoadedModel) -> bytes:
    """A serialized jax.export of token ids BxT (int32) to float32 logits BxTxV, B and T symbolic.

    The parameters are constants in it. Attention is the `reference` kernel, the only one whose
    program does not depend on T. There is no gradient. Raises UserError for a model that is too
    large for one file.
    """
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    if size > LARGEST_BYTES:
        raise UserError(
            f"--format=stablehlo holds at most 2 GiB but the parameters have {size / 2**30:.1f}: "
            "use --format=safetensors."
        )
    config = replace(model.config, attention_implementation="reference")
    decoder = model.decoder.clone(config=config)
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), model.params)
    limits = [f"t <= {config.max_length}"] if config.positions == "learned" else []
    shape = jax.export.symbolic_shape("b, t", constraints=limits)
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    logits = jax.jit(lambda ids_BxT: decoder.apply({"params": params}, ids_BxT))
    return bytes(jax.export.export(logits, platforms=PLATFORMS)(ids).serialize())
