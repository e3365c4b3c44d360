"""Compiles attention and its gradient for one chip of TPU v5e on a machine without one.

Usage: tpu_runs.py LENGTH ATTENTION; prints what the program holds as JSON. A script, since libtpu
reads its settings when it is loaded. Needs the extra `[tpu]`.
"""

import json
import re
import sys
from typing import Any

import jax

from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.topology import Slice, set_up_libtpu
from tests.benchmarks.bench_tpu import DUMPS, compile_program, forward

KERNELS = "hyla_forward|hyla_backward|softmax_forward|softmax_backward"


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
    set_up_libtpu(DUMPS)
    function, shapes = forward(length, attention, "pallas_tpu")

    def output_and_gradients(*qkv: jax.Array) -> Any:
        y, pull_back = jax.vjp(function, *qkv)
        return y, pull_back(y)

    device = Slice("v5e:2x2").devices()[0]
    text = compile_program((output_and_gradients, shapes), device).as_text()
    print(json.dumps(findings(text, length, Dumps(DUMPS))))


if __name__ == "__main__":
    main()
