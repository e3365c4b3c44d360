"""SentencePiece tokenizers, with special ids read from the model file itself."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sentencepiece

from hyla_lm.errors import UserError
from hyla_lm.storage import read_whole

SPECIAL = ("bos", "eos", "pad", "unk")


@dataclass(frozen=True)
class Tokenizer:
    """A SentencePiece model; raises UserError if the file is missing or cannot mark documents.

    A document is BOS, ids, EOS. A model without BOS starts documents with its PAD, as T5 does.
    """

    path: str

    @cached_property
    def content(self) -> bytes:
        """The bytes of the model file."""
        content = read_whole(self.path)
        if content is None:
            raise UserError(f"tokenizer {self.path} does not exist: correct the tokenizer path.")
        return content

    @cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=self.content)
        except (RuntimeError, OSError) as error:
            raise UserError(f"tokenizer {self.path} is no SentencePiece model.") from error
        if processor.eos_id() < 0 or max(processor.bos_id(), processor.pad_id()) < 0:
            raise UserError(
                f"tokenizer {self.path} lacks EOS, or both BOS and PAD: train one that has them."
            )
        return processor

    @property
    def vocab_size(self) -> int:
        return self.processor.GetPieceSize()

    @property
    def bos(self) -> int:
        """The id that starts a document: BOS, or PAD where the model has no BOS."""
        return self.special_ids["bos"] if self.special_ids["bos"] >= 0 else self.special_ids["pad"]

    @property
    def eos(self) -> int:
        return self.special_ids["eos"]

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """The model's ids of BOS, EOS, PAD and UNK; -1 for a missing one."""
        return {name: int(getattr(self.processor, f"{name}_id")()) for name in SPECIAL}

    @cached_property
    def sha256(self) -> str:
        """Hash of the model file, recorded in manifests and checkpoints."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def piece_bytes(self) -> np.ndarray:
        """UTF-8 bytes of each piece (uint32, shape V); 0 for control pieces."""
        processor = self.processor
        sizes = np.zeros(self.vocab_size, np.uint32)
        for index in range(self.vocab_size):
            if processor.IsControl(index):
                continue
            piece = processor.IdToPiece(index).replace("\u2581", " ")
            sizes[index] = 1 if processor.IsByte(index) else len(piece.encode())
        return sizes

    def encode(self, text: str) -> list[int]:
        return self.processor.EncodeAsIds(text)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """The ids of each text (int32), on `threads` threads; their number changes nothing."""
        return self.processor.encode(list(texts), out_type="numpy", num_threads=threads)

    def decode(self, ids: list[int]) -> str:
        return self.processor.DecodeIds(ids)
