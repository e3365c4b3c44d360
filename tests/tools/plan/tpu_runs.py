"""Compiles attention and its gradient for one chip of TPU v5e on a machine without one.

Usage: tpu_runs.py LENGTH ATTENTION; prints what the program holds as JSON. A script, since libtpu
reads its settings when it is loaded. Needs the extra `[tpu]`.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hyla_lm.attention.attend import attend
from hyla_lm.attention.spec import VARIANTS
from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.topology import Slice, set_up_libtpu

HEADS, HEAD_DIM = 8, 64
KERNELS = "hyla_forward|hyla_backward|softmax_forward|softmax_backward"


def compile_kernel(device: Any, length: int, attention: str) -> str:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=[device])
    one_chip = NamedSharding(mesh, PartitionSpec())
    x = jax.ShapeDtypeStruct((1, length, HEADS, HEAD_DIM), jnp.bfloat16, sharding=one_chip)

    def output_and_gradients(*qkv: jax.Array) -> Any:
        chosen = {"causal": True, "implementation": "pallas_tpu"}
        y, pull_back = jax.vjp(lambda *qkv: attend(*qkv, VARIANTS[attention], **chosen), *qkv)
        return y, pull_back(y)

    with jax.set_mesh(mesh):
        return jax.jit(output_and_gradients).lower(x, x, x).compile().as_text()


def findings(text: str, length: int, dumps: Dumps) -> dict[str, object]:
    found = re.findall(r"\b(?:bf16|f32)\[([\d,]+)\]", text)
    return {
        "square_arrays": [shape for shape in found if shape.split(",").count(str(length)) >= 2],
        "kernels": sorted(set(re.findall(rf"%\w*?({KERNELS})\w*(?:\.\d+)? = ", text))),
        "cycles": [
            dumps.cycles(name)
            for name in re.findall(r'%([\w.\-]+) = .*custom_call_target="tpu_custom_call"', text)
        ],
    }


def main() -> None:
    length, attention = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="tpu_runs_") as folder:
        set_up_libtpu(Path(folder))
        text = compile_kernel(Slice("v5e:2x2").devices()[0], length, attention)
        print(json.dumps(findings(text, length, Dumps(Path(folder)))))


if __name__ == "__main__":
    main()
