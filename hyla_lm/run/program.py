"""From an experiment to its program: mesh, model, layout of the state and steps to compile."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from hyla_lm.config import declare as config
from hyla_lm.config.experiment import Experiment
from hyla_lm.diagnostics.norms import norms_of
from hyla_lm.errors import UserError
from hyla_lm.metrics import Metrics
from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.flops import count_parameters
from hyla_lm.model.width import rate_of, scale_initial
from hyla_lm.optim import make_optimizer, make_schedule
from hyla_lm.parallel.mesh import make_mesh, memory_of
from hyla_lm.parallel.sharded_attention import check_mesh
from hyla_lm.parallel.sharding import (
    batch_sharding,
    batch_ways,
    bytes_on_device,
    state_sharding,
)
from hyla_lm.tasks.language_model import LanguageModelTask
from hyla_lm.tasks.protocol import Batch, Objective, Task
from hyla_lm.train_step import TrainState, TrainStep, init_state, make_train_step
from hyla_lm.update_policy import guard_init, guard_step

MOST_UNROLLED = 256  # layers; more take hours to compile
PACKAGES = ("hyla_lm", "jax", "jaxlib", "libtpu", "flax", "optax")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

# In the identity of runs whose state has a guard; others have none, as before there were policies.
GUARDED = "UpdatePolicy (nonfinite = 'skip' or a spike_factor)"
# In the identity of runs whose state is Muon's; others have none, as before there was a choice.
MUON = "Muon (OptimizerConfig.optimizer = 'muon')"
ObjectiveT = TypeVar("ObjectiveT", bound=Objective)
ObjectiveT_co = TypeVar("ObjectiveT_co", bound=Objective, covariant=True)


@dataclass(frozen=True)
class Program(Generic[ObjectiveT_co]):
    """What a run computes with: call `init`, `train_step` and `evaluation_step` under `mesh`.

    `task` is a prepared task, or only the objective where nothing is trained. `token_step` gives
    the metrics of `evaluation_step` and the nats of each target, for losses by document.
    """

    experiment: Experiment
    task: ObjectiveT_co
    model: Decoder
    mesh: Mesh
    schedule: Any
    abstract_state: TrainState
    init: Any
    train_step: TrainStep
    evaluation_step: Any
    token_step: Any = None

    @property
    def tokens_per_step(self) -> int:
        """Positions of one global batch."""
        return self.experiment.train.batch_size * self.task.sequence_length

    def to_devices(self, batch: Mapping[str, Any]) -> Batch:
        """A host batch (this process's shard) as global device arrays."""
        sharding = batch_sharding(self.mesh)
        return {
            name: jax.make_array_from_process_local_data(sharding, value)
            for name, value in batch.items()
        }


def make_program(
    experiment: Experiment, devices: Sequence[jax.Device] | None = None
) -> Program[Task]:
    """Prepares the task and lays the program out; every check before training happens here."""
    mesh = checked_mesh(experiment, devices)
    assert experiment.train.task is not None
    task = experiment.train.task.prepare_task(experiment.train.batch_size)
    return lay_out(experiment, task, mesh)


def checked_mesh(experiment: Experiment, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The experiment's mesh; raises UserError where it does not fit the batch or the kernel."""
    mesh = make_mesh(experiment.mesh, devices)
    _check_batch(experiment, mesh)
    _check_platform(experiment.model, mesh)
    return mesh


def lay_out(experiment: Experiment, task: ObjectiveT, mesh: Mesh) -> Program[ObjectiveT]:
    """The program of an objective on a mesh; raises UserError where the model does not fit."""
    train = experiment.train
    _check_layers(experiment.model)
    _check_length(experiment.model, task.sequence_length)
    _check_soft_cap(experiment.model, task.io)
    model = Decoder(experiment.model, task.io)
    _check_model_axis(model, task.sequence_length, mesh.shape["model"])
    schedule = make_schedule(experiment.optimizer, train.steps)
    optimizer = make_optimizer(experiment.optimizer, schedule, rate_of=rate_of(experiment.model))
    init: Any = partial(init_state, partial(init_params, model), optimizer, train.seed)
    if experiment.updates.is_on:
        init = guard_init(init)
    with jax.set_mesh(mesh):  # as in the run, so that it is traced once
        shapes = jax.eval_shape(init)
    layout = state_sharding(shapes, mesh)
    abstract = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        layout,
    )
    loss, dtype = task.loss(model), experiment.model.dtype
    scanned = experiment.model.scan_layers
    measure = partial(norms_of, scanned=scanned) if experiment.log.layers else None
    step = make_train_step(loss, optimizer, train.accumulate_steps, train.seed, measure, dtype)
    if experiment.updates.is_on:
        step = guard_step(step, experiment.updates)

    token_step = None
    if isinstance(task, LanguageModelTask) and task.config.document_losses:
        by_token = (None, batch_sharding(mesh))
        token_step = jax.jit(task.loss_by_token(model), out_shardings=by_token)

    def evaluation_step(params: Any, batch: Batch) -> Metrics:
        return loss(params, batch, None)[1]

    return Program(
        experiment,
        task,
        model,
        mesh,
        schedule,
        abstract,
        jax.jit(init, out_shardings=layout),
        jax.jit(step, donate_argnums=0, out_shardings=(layout, None)),
        jax.jit(evaluation_step),
        token_step,
    )


def check_memory(program: Program[Objective], runs: int = 1) -> None:
    """Raises UserError where no device can hold so many runs, before anything is compiled.

    A step holds the state, the batch and what the backward pass begins from: each block's input.
    """
    c, devices = program.experiment.model, program.mesh.devices
    rows = program.experiment.train.batch_size / program.experiment.train.accumulate_steps
    tokens = rows * program.task.sequence_length / devices.size
    inputs = tokens * c.model_dim * c.num_layers * jnp.dtype(c.dtype).itemsize
    batch = bytes_on_device(abstract_batch(program))
    needed = runs * (bytes_on_device(program.abstract_state) + batch + inputs)
    available = memory_of(devices.flat[0])
    if needed > available:
        parameters = runs * count_parameters(program.abstract_state.params)
        task = type(program.experiment.train.task).__name__
        raise UserError(
            f"a step needs at least {needed / 1e9:,.1f} GB on each device, which has "
            f"{available / 1e9:,.1f} GB ({parameters:,} parameters with the optimizer's state, and "
            f"micro-batches of {rows:,.0f} rows): lower sizes of ModelConfig or {task}, or "
            "TrainConfig.batch_size, or raise TrainConfig.accumulate_steps or MeshConfig.fsdp."
        )


def compile_step(program: Program[Task]) -> Program[Task]:
    """The program with its train step compiled; raises UserError where the devices cannot run it.

    Call it under the mesh.
    """
    try:
        return replace(program, train_step=lower_step(program).compile())
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the train step cannot be compiled for these devices ({reason}): if it lacks memory, "
            "raise TrainConfig.accumulate_steps or lower TrainConfig.batch_size."
        ) from error


def lower_step(program: Program[Objective]) -> jax.stages.Lowered:
    """The train step, lowered for its state and a global batch; call it under the mesh."""
    step: Any = program.train_step
    return step.lower(program.abstract_state, abstract_batch(program))


def abstract_batch(program: Program[Objective]) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a global batch, laid over the mesh."""
    sharding = batch_sharding(program.mesh)
    shapes = program.task.batch_shapes(program.experiment.train.batch_size)
    return {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
        for name, array in shapes.items()
    }


def identity(program: Program[Task]) -> dict[str, Any]:
    """What must be equal for a run to be continued, by the names its user knows."""
    return identity_with(program.experiment, program.task.identity())


def identity_with(experiment: Experiment, data: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a run of this experiment whose task has the identity `data`."""
    named = {"ModelConfig": config.as_dict(experiment.model)}
    seed = {"TrainConfig": {"seed": experiment.train.seed}}
    guard = {GUARDED: True} if experiment.updates.is_on else {}
    muon = {MUON: True} if experiment.optimizer.optimizer == "muon" else {}
    return {**named, **seed, **guard, **muon, "data": data}


def meta_of(program: Program[Task]) -> dict[str, Any]:
    """What a checkpoint says of the run that saved it."""
    return {
        "identity": identity(program),
        "gin": program.experiment.text,
        "versions": versions(),
        "numerics": _numerics_of(program.mesh),
    }


def _numerics_of(mesh: Mesh) -> dict[str, Any]:
    """Devices in the order of the mesh, precision and flags."""
    devices = list(mesh.devices.flat)
    cores = _cores() if devices[0].platform == "cpu" else None
    return {
        "device_kind": devices[0].device_kind,
        "devices": " ".join(f"{device.process_index}.{device.id}" for device in devices),
        "mesh": {axis: size for axis, size in mesh.shape.items()},
        "cpu_cores": cores,
        "matmul_precision": jax.config.values["jax_default_matmul_precision"],
        **{name: os.environ.get(name, "") for name in FLAGS},
    }


def _cores() -> int | None:
    """The cores that this process may use, where the system knows."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@cache
def versions() -> dict[str, str]:
    """The installed versions of what computes."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def init_params(model: Decoder, key: jax.Array) -> Any:
    """The model's parameters before training, whatever kernel it has."""
    local = model.clone(config=replace(model.config, attention_implementation="reference"))
    io = model.io
    inputs = (
        jnp.zeros((1, 1, io.input_size)) if isinstance(io, Features) else jnp.zeros((1, 1), int)
    )
    return scale_initial(model.config, local.init(key, inputs)["params"])


def _check_model_axis(model: Decoder, length: int, parts: int) -> None:
    """Checks the queries of every layer; a single one is never divided."""
    config = model.config
    for layer in range(config.num_layers):
        is_last = layer == config.num_layers - 1
        queries = model.answers or length if is_last else length
        if queries > 1:
            check_mesh(parts, config.spec(layer), config.num_heads, queries)


def _check_layers(config: ModelConfig) -> None:
    if config.num_layers > MOST_UNROLLED and not config.scan_layers:
        raise UserError(
            f"ModelConfig.num_layers = {config.num_layers} needs ModelConfig.scan_layers = True."
        )


def _check_length(config: ModelConfig, length: int) -> None:
    if config.positions == "learned" and config.max_length < length:
        raise UserError(
            f"ModelConfig.max_length = {config.max_length} is below the sequence length {length}: "
            "raise it to that."
        )


def _check_soft_cap(config: ModelConfig, io: Tokens | Features) -> None:
    if config.logit_soft_cap is not None and isinstance(io, Features):
        raise UserError(
            f"ModelConfig.logit_soft_cap = {config.logit_soft_cap} caps logits over a vocabulary, "
            "and this task has none: leave it out."
        )


def _check_platform(config: ModelConfig, mesh: Mesh) -> None:
    platform, kernel = mesh.devices.flat[0].platform, config.attention_implementation
    needed = {"pallas_tpu": "tpu", "cudnn_gpu": "gpu"}.get(kernel, platform)
    if platform != needed:
        raise UserError(
            f"ModelConfig.attention_implementation = {kernel!r} needs {needed.upper()}s but the "
            f"devices are {platform}: use 'auto' or 'blocked'."
        )


def _check_batch(experiment: Experiment, mesh: Mesh) -> None:
    train, ways = experiment.train, batch_ways(mesh)
    micro = train.batch_size // train.accumulate_steps
    if micro % ways:
        raise UserError(
            f"TrainConfig.batch_size = {train.batch_size} in {train.accumulate_steps} micro-batches"
            f" does not divide over MeshConfig replica x data x fsdp = {ways} devices: change one."
        )
