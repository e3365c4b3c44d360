"""What TensorBoard knows of a run besides its points: settings, and charts of several curves."""

import re
from collections.abc import Iterable, Iterator, Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MultilineChartContent,
)
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG
from tensorboard.plugins.custom_scalar.metadata import create_summary_metadata as of_charts
from tensorboard.plugins.hparams.api_pb2 import (
    DATA_TYPE_BOOL,
    DATA_TYPE_FLOAT64,
    DATA_TYPE_STRING,
    Experiment,
    HParamInfo,
    MetricInfo,
    MetricName,
)
from tensorboard.plugins.hparams.metadata import (
    EXPERIMENT_TAG,
    NULL_TENSOR,
    SESSION_START_INFO_TAG,
)
from tensorboard.plugins.hparams.metadata import create_summary_metadata as of_settings
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo
from tensorboard.util.tensor_util import make_tensor_proto

from hyla_lm.logs.protocol import Hyperparameter
from hyla_lm.logs.tensorboard_order import shown

BEFORE_ALL = -1  # a process that begins at step 0 purges what others wrote from 0 on
# TensorBoard's table of HParams shows so many settings unless asked for more: by name, those that
# differ first.
COLUMNS = 5
FIELDS = {  # that hold a setting, by its type
    DATA_TYPE_BOOL: "bool_value",
    DATA_TYPE_FLOAT64: "number_value",
    DATA_TYPE_STRING: "string_value",
}
METRICS = {
    "validation/loss_nats": "validation loss (nats)",
    "validation/bits_per_byte": "validation bits per byte",
    "perf/tokens_per_second": "tokens per second",
}
# Charts by title, in sections: the tags of their curves; `*` is any rest of a tag.
CHARTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Training and validation": {
        "loss, nats a token": ("train/loss_nats", "validation/*loss_nats"),
        "bits per byte": ("train/bits_per_byte", "validation/*bits_per_byte"),
        "accuracy": ("train/accuracy", "validation/*accuracy"),
    },
    "Layers": {
        "norm of the gradients by layer": ("optim/gradient_norm/*",),
        "norm of the updates by layer": ("optim/update_norm/*",),
        "norm of the parameters by layer": ("optim/parameter_norm/*",),
        "effective rank of the latent code by layer": ("attention/code_rank/*",),
        "entropy of attention by layer": ("attention/entropy/*",),
        "largest score by layer": ("attention/score_max/*",),
    },
    "Time": {
        "seconds of a duty": (
            "perf/save_seconds",
            "perf/evaluation_seconds",
            "perf/details_seconds",
        ),
    },
}


def settings_events(values: Mapping[str, Hyperparameter]) -> Iterator[Event]:
    """The settings by which runs are compared, the metrics to show beside them, and the charts."""
    table = HParamsPluginData(experiment=_table(values))
    of_run = HParamsPluginData(session_start_info=_settings(values))
    charts = make_tensor_proto(_layout().SerializeToString())
    for value in (
        Summary.Value(tag=EXPERIMENT_TAG, tensor=NULL_TENSOR, metadata=of_settings(table)),
        Summary.Value(tag=SESSION_START_INFO_TAG, tensor=NULL_TENSOR, metadata=of_settings(of_run)),
        Summary.Value(tag=CONFIG_SUMMARY_TAG, tensor=charts, metadata=of_charts()),
    ):
        yield Event(step=BEFORE_ALL, summary=Summary(value=[value]))


def _table(values: Mapping[str, Hyperparameter]) -> Experiment:
    """Columns of all runs: settings, of which the first are said to differ, and metrics."""
    return Experiment(
        hparam_infos=[
            HParamInfo(name=name, type=_data_type(value), differs=number < COLUMNS)
            for number, (name, value) in enumerate(values.items())
        ],
        metric_infos=[
            MetricInfo(name=MetricName(tag=shown(tag)), display_name=name)
            for tag, name in METRICS.items()
        ],
    )


def _settings(values: Mapping[str, Hyperparameter]) -> SessionStartInfo:
    found = SessionStartInfo()
    for name, value in values.items():
        setattr(found.hparams[name], FIELDS[_data_type(value)], value)
    return found


def _data_type(value: Hyperparameter) -> int:
    if isinstance(value, bool):
        return DATA_TYPE_BOOL
    return DATA_TYPE_STRING if isinstance(value, str) else DATA_TYPE_FLOAT64


def _layout() -> Layout:
    return Layout(
        category=[
            Category(
                title=section,
                chart=[
                    Chart(title=title, multiline=MultilineChartContent(tag=_patterns(tags)))
                    for title, tags in charts.items()
                ],
            )
            for section, charts in CHARTS.items()
        ]
    )


def _patterns(tags: Iterable[str]) -> list[str]:
    """Regular expressions for the names of tags in TensorBoard."""
    return [f"^{_pattern(tag)}$" for tag in tags]


def _pattern(tag: str) -> str:
    return ".*".join(map(re.escape, shown(tag).split("*")))
