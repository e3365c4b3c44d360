"""Settings of data from SeqIO, which need no SeqIO to be read; the extra `seqio` opens the data."""

from dataclasses import dataclass

from hyla_lm.config.declare import check_given, configurable, setting
from hyla_lm.input.source import LanguageData, Reading


@configurable
@dataclass(frozen=True)
class SeqioTasks:
    """Where the task c4_lm finds its text, and what registers other tasks (extra seqio)."""

    tfds_name: str = setting("c4/en:3.1.0", "TFDS name and version of c4_lm (3.0.1, 3.0.7, 3.1.0)")
    tfds_folder: str | None = setting(
        None, "TFDS data_dir of c4_lm; None takes TFDS's own", path=True
    )
    modules: tuple[str, ...] = setting(
        (), "modules to import that register more tasks", imports=True
    )


@configurable
@dataclass(frozen=True)
class SeqioTask:
    """Any registered SeqIO task or mixture, shuffled and packed while training (extra seqio).

    Resuming reads all earlier documents again: prepare rows for long runs.
    """

    name: str = setting("", "task or mixture, such as 'c4_lm'")
    tasks: SeqioTasks | None = setting(
        None, "where tasks find their text, such as @SeqioTasks(); None takes its defaults"
    )
    tokenizer: str = setting("", "SentencePiece model of the task's vocabulary", path=True)
    train_split: str = setting("train", "split to train on")
    validation_split: str = setting("validation", "split to evaluate on")
    validation_documents: int | None = setting(
        4096, "number of first documents that are the validation set; None takes all", minimum=1
    )

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        from hyla_lm.data.seqio_documents import open_task

        check_given(self, "name", "tokenizer")
        return open_task(self, sequence_length, reading)
