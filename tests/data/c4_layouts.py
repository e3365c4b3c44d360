"""C4 as it lies on disk: AllenAI's json.gz, and TFDS builders with all five text fields."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

FIELDS = ("content-length", "content-type", "text", "timestamp", "url")


def c4_fields(number: int, text: str) -> dict[str, str]:
    return {
        "content-length": str(len(text.encode())),
        "content-type": "text/plain",
        "text": text,
        "timestamp": "2019-04-25T12:57:54Z",
        "url": f"https://example.com/{number}",
    }


def write_json_gz(texts: Sequence[str], folder: Path, split: str, shards: int) -> list[Path]:
    """Shards with AllenAI's names and three fields; document i is in shard i mod `shards`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"c4-{split}.{i:05d}-of-{shards:05d}.json.gz" for i in range(shards)]
    for index, path in enumerate(paths):
        with gzip.open(path, "wt", encoding="utf-8") as file:
            for number in range(index, len(texts), shards):
                fields = c4_fields(number, texts[number])
                kept = {name: fields[name] for name in ("text", "timestamp", "url")}
                file.write(json.dumps(kept, ensure_ascii=number % 2 == 0) + "\n")
    return paths


def write_array_records(texts: Sequence[str], folder: Path, split: str, shards: int) -> list[Path]:
    """Shards with TFDS's names and records, written without TFDS."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"c4-{split}.array_record-{i:05d}-of-{shards:05d}" for i in range(shards)]
    for index, path in enumerate(paths):
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for number in range(index, len(texts), shards):
            writer.write(tf_example(c4_fields(number, texts[number])))
        writer.close()
    return paths


def tf_example(fields: dict[str, str]) -> bytes:
    """A serialized tf.train.Example of bytes features."""
    features = b""
    for name, value in fields.items():
        feature = _field(1, _field(1, value.encode()))
        features += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, features)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def build_tfds(texts: dict[str, Sequence[str]], data_dir: Path, file_format: str) -> Path:
    """The dataset c4/en:3.1.0 as TFDS itself writes it, 4 shards a split; returns its folder."""
    import tensorflow_datasets as tfds

    with tfds.core.registered.skip_registration():

        class C4(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("3.1.0")
            BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="en")]  # noqa: RUF012

            def _info(self):
                features = {name: tfds.features.Text() for name in FIELDS}
                return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

            def _split_generators(self, dl_manager):
                return {split: self._generate_examples(split) for split in texts}

            def _generate_examples(self, split):
                for number, text in enumerate(texts[split]):
                    yield number, c4_fields(number, text)

    builder = C4(config="en", data_dir=str(data_dir), file_format=file_format)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))
    return Path(builder.data_dir)
