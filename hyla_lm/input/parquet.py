"""Texts of parquet files (extra parquet)."""

from collections.abc import Iterator

from etils import epath

from hyla_lm.errors import UserError

ROWS_PER_READ = 512


def parquet_texts(path: epath.Path, attempts: int, field: str) -> Iterator[str]:
    """The texts in a column of strings; raises UserError for a damaged file or another column."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError(
            f"{path} needs pyarrow: pip install 'hyla_lm[parquet]', or in a clone "
            "pip install -e '.[parquet]'."
        ) from error
    try:
        with path.open("rb") as opened, parquet.ParquetFile(opened) as file:
            names = file.schema_arrow.names
            if field not in names:
                there = ", ".join(map(repr, names)) or "none"
                raise UserError(
                    f"{path} has no column {field!r} but {there:.200}: name one with --field."
                )
            batches = file.iter_batches(ROWS_PER_READ, columns=[field])
            texts = (text for batch in batches for text in batch[0].to_pylist())
            for number, text in enumerate(texts, 1):
                if not isinstance(text, str):
                    raise UserError(
                        f"{path}: row {number} holds no text (column {field!r} is no string): "
                        "mend that file, or name another column with --field."
                    )
                yield text
    except ArrowException as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path} is damaged ({reason:.120}): fetch the file again.") from error
