"""Attention kernels that run on this device against the reference in float32.

An error is the largest difference over the largest entry of the reference. A kernel may lose three
times what the reference itself loses in the same dtype on this device, and at least a floor: sums
in another order in float32, one rounding of the result in bfloat16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.attention.attend import KERNELS, VARIANTS, AttentionSpec, Kernel, Request, make_request
from hyla_lm.attention.reference import attend_block
from hyla_lm.ending import reason_of
from hyla_lm.model.config import ModelConfig

FLOOR = {"float32": 2e-4, "bfloat16": 1e-2}
ALLOWANCE = 3.0
ODD = ("hyla", "softmax", "linear")
ODD_LENGTH = 301  # longer than a block of any kernel but those of 512
OF_ONE_PLATFORM = ("_tpu", "_gpu")  # how the names of their implementations end
Operands = dict[str, jax.Array]


@dataclass(frozen=True)
class Case:
    """The shape of one causal attention; with `segments` the rows are of several documents."""

    variant: str
    spec: AttentionSpec
    batch: int
    length: int
    heads: int
    key_dim: int
    value_dim: int
    segments: bool = False

    def __str__(self) -> str:
        sizes = f"B{self.batch} T{self.length} H{self.heads} K{self.key_dim} U{self.value_dim}"
        return f"{self.variant} {sizes}" + " documents" * self.segments


@dataclass(frozen=True)
class Check:
    """A kernel's errors in output and gradients, and how large each may be.

    An error is None where it is no number. `failure` says why a kernel gave no result.
    """

    kernel: str
    case: str
    dtype: str
    errors: dict[str, float | None]
    bounds: dict[str, float]
    failure: str = ""

    @property
    def is_within(self) -> bool:
        pairs = [(self.errors.get(name), bound) for name, bound in self.bounds.items()]
        return not self.failure and all(e is not None and e <= bound for e, bound in pairs)


def cases(config: ModelConfig, length: int) -> list[Case]:
    """The config's own shape, one that no block divides, and an odd one of every basic variant."""
    sizes = (config.num_heads, config.head_dim, config.value_size)
    own = {name: config.spec(layer) for layer, name in enumerate(config.pattern)}
    whole = [Case(name, spec, 1, length, *sizes) for name, spec in own.items()]
    odd = [Case(name, spec, 2, length + 44, *sizes, True) for name, spec in own.items()]
    basic = [Case(name, VARIANTS[name], 1, ODD_LENGTH, 3, 20, 33, True) for name in ODD]
    return [*whole, *odd, *basic]


def check_kernels(
    config: ModelConfig, length: int, platform: str, say: Callable[[str], None]
) -> list[Check]:
    """Every kernel of this platform that can do a case, on every case."""
    checks = []
    for case in cases(config, length):
        say(f"kernels: {case}")
        checks += _check_case(case, jnp.dtype(config.dtype), platform)
    return checks


def _check_case(case: Case, dtype: jnp.dtype, platform: str) -> list[Check]:
    given = operands(case, dtype)
    exact = {name: x.astype(jnp.float32) for name, x in given.items()}
    with jax.default_matmul_precision("highest"):
        expected = results(attend_block, case, exact)
    own = errors_of(results(attend_block, case, given), expected)
    bounds = {
        name: max(FLOOR[dtype.name], ALLOWANCE * (error or 0.0)) for name, error in own.items()
    }
    checks = []
    for kernel in able(case, given, platform):
        errors, failure = {}, ""
        try:
            errors = errors_of(results(kernel.run, case, given), expected)
        except Exception as error:  # whatever a compiler raises is the finding
            failure = reason_of(error)
        checks.append(Check(kernel.name, str(case), dtype.name, errors, bounds, failure))
    return checks


def able(case: Case, given: Operands, platform: str) -> list[Kernel]:
    """The kernels beside the reference that can do a case on a platform."""
    request = jax.eval_shape(partial(_request, case), given)
    others = tuple(end for end in OF_ONE_PLATFORM if end != f"_{platform}")
    return [
        kernel
        for kernel in KERNELS
        if kernel.run is not attend_block
        and not kernel.implementation.endswith(others)
        and not kernel.unsupported(request)
    ]


def operands(case: Case, dtype: jnp.dtype) -> Operands:
    """Normal operands of a case, and the cotangent of its output."""
    rng = np.random.default_rng(0)
    rows = (case.batch, case.length, case.heads)
    shapes: dict[str, tuple[int, ...]]
    shapes = {"q": (*rows, case.key_dim), "k": (*rows, case.key_dim), "v": (*rows, case.value_dim)}
    if case.spec.value_depth == 2:
        shapes["deep_kernel"] = (case.heads, case.value_dim, case.value_dim)
    shapes["output"] = (*rows, case.value_dim)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}


def results(run: Callable[[Request], jax.Array], case: Case, given: Operands) -> Operands:
    """The output and the gradient of every operand, in float32."""

    @jax.jit
    def compute(given: Operands) -> Operands:
        inputs = {name: x for name, x in given.items() if name != "output"}
        y, pull_back = jax.vjp(lambda x: run(_request(case, x)), inputs)
        (gradients,) = pull_back(given["output"].astype(y.dtype))
        outputs = {"output": y} | {f"d{name}": x for name, x in gradients.items()}
        return {name: x.astype(jnp.float32) for name, x in outputs.items()}

    return jax.block_until_ready(compute(given))


def errors_of(computed: Operands, expected: Operands) -> dict[str, float | None]:
    """The largest difference over the largest entry expected; None where it is no number."""
    errors: dict[str, float | None] = {}
    for name, x in expected.items():
        error = float(jnp.max(jnp.abs(computed[name] - x)) / jnp.max(jnp.abs(x)))
        errors[name] = error if np.isfinite(error) else None
    return errors


def _request(case: Case, given: Any) -> Request:
    starts = np.random.default_rng(1).random((case.batch, case.length)) < 0.05
    documents = jnp.asarray(np.cumsum(starts, axis=1), jnp.int32) if case.segments else None
    return make_request(
        given["q"],
        given["k"],
        given["v"],
        case.spec,
        causal=True,
        segment_ids=documents,
        deep_kernel_HxUxU=given.get("deep_kernel"),
    )
