"""What TensorBoard knows of a run besides its points: settings, and charts of several curves."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping

from tensorboard.plugins.hparams.api_pb2 import MetricInfo, MetricName
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from hyla_lm.sinks.protocol import Hyperparameter
from hyla_lm.sinks.tensorboard_order import shown

BEFORE_ALL = -1  # a process that begins at step 0 purges what others wrote from 0 on
# TensorBoard's table of HParams shows so many settings unless asked for more: by name, those that
# differ first.
COLUMNS = 5
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
    experiment, start, _ = summary.hparams(dict(values), {})
    for content in (_as_table(experiment), start, summary.custom_scalars(_layout())):
        yield Event(wall_time=time.time(), step=BEFORE_ALL, summary=content)


def _as_table(experiment: Summary) -> Summary:
    """With the metrics as columns, and first those settings that are said to differ."""
    plugin = experiment.value[0].metadata.plugin_data
    data = HParamsPluginData.FromString(plugin.content)
    for column in data.experiment.hparam_infos[:COLUMNS]:
        column.differs = True
    data.experiment.metric_infos.extend(
        MetricInfo(name=MetricName(tag=shown(tag)), display_name=name)
        for tag, name in METRICS.items()
    )
    plugin.content = data.SerializeToString()
    return experiment


def _layout() -> dict[str, dict[str, list[str | list[str]]]]:
    return {
        section: {title: ["Multiline", _patterns(tags)] for title, tags in charts.items()}
        for section, charts in CHARTS.items()
    }


def _patterns(tags: Iterable[str]) -> list[str]:
    """Regular expressions for the names of tags in TensorBoard."""
    return [f"^{_pattern(tag)}$" for tag in tags]


def _pattern(tag: str) -> str:
    return ".*".join(map(re.escape, shown(tag).split("*")))
