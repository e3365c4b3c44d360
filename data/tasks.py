"""SeqIO tasks for language modelling: C4 from TFDS, C4 as AllenAI's json.gz, any text.

`register` puts `c4_lm`, `c4_lm_json`, `text_lm` and the mixture `c4_and_text` into SeqIO's
registry, for this package or any other user of SeqIO. Needs the extra `seqio`.
"""

import functools
from collections.abc import Iterator, Sequence
from importlib import import_module

import seqio
import tensorflow as tf

from hyla_lm.data.seqio_settings import SeqioTasks
from hyla_lm.errors import UserError
from hyla_lm.input.documents import read_texts

TASKS = ("c4_lm", "c4_lm_json", "text_lm")
MIXTURE = "c4_and_text"


def register(vocabulary: str, settings: SeqioTasks) -> None:
    """Registers the tasks, replacing an earlier call's, and imports the modules of `settings`."""
    seqio.MixtureRegistry.remove(MIXTURE)
    for name in TASKS:
        seqio.TaskRegistry.remove(name)
    tfds = seqio.TfdsDataSource(settings.tfds_name, tfds_data_dir=settings.tfds_folder)
    _add("c4_lm", tfds, vocabulary)
    if settings.json_train:
        _add("c4_lm_json", _files(settings.json_train, settings.json_validation), vocabulary)
    if settings.text_train:
        _add("text_lm", _files(settings.text_train, settings.text_validation), vocabulary)
        seqio.MixtureRegistry.add(MIXTURE, [("c4_lm", 1.0), ("text_lm", settings.text_rate)])
    for module in settings.modules:
        try:
            import_module(module)
        except ImportError as error:
            raise UserError(
                f"SeqioTasks.modules names {module}, which cannot be imported ({error})."
            ) from error


def _add(name: str, source: seqio.DataSource, vocabulary: str) -> None:
    feature = seqio.Feature(seqio.SentencePieceVocabulary(vocabulary), add_eos=True)
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos,
        ],
        output_features={"targets": feature},
        metric_fns=[],
    )


def _files(train: Sequence[str], validation: Sequence[str]) -> seqio.FileDataSource:
    patterns = {"train": list(train), "validation": list(validation)}
    return seqio.FileDataSource(
        read_file_fn=read_text_file,
        split_to_filepattern={split: globs for split, globs in patterns.items() if globs},
    )


def read_text_file(file: tf.Tensor) -> tf.data.Dataset:
    """The documents of one file of JSON lines (gzipped or not) or plain text, as {"text"}."""

    def read(name: bytes) -> Iterator[dict[str, str]]:
        for text in read_texts(name.decode()):
            yield {"text": text}

    return tf.data.Dataset.from_generator(
        read, args=(file,), output_signature={"text": tf.TensorSpec([], tf.string)}
    )
