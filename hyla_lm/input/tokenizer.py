"""SentencePiece tokenizers, with special ids read from the model file itself."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import sentencepiece

from hyla_lm.config import UserError


@dataclass(frozen=True)
class Tokenizer:
    """A SentencePiece model; raises UserError when the file is absent or lacks BOS or EOS."""

    path: str

    @cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        if not Path(self.path).is_file():
            raise UserError(f"tokenizer {self.path} does not exist: correct the tokenizer path.")
        try:
            processor = sentencepiece.SentencePieceProcessor(model_file=self.path)
        except (RuntimeError, OSError) as error:
            raise UserError(f"tokenizer {self.path} is no SentencePiece model.") from error
        if processor.bos_id() < 0 or processor.eos_id() < 0:
            raise UserError(f"tokenizer {self.path} lacks BOS or EOS: train one that has both.")
        return processor

    @property
    def vocab_size(self) -> int:
        return self.processor.GetPieceSize()

    @property
    def bos(self) -> int:
        return self.processor.bos_id()

    @property
    def eos(self) -> int:
        return self.processor.eos_id()

    @cached_property
    def sha256(self) -> str:
        """Hash of the model file, recorded in manifests and checkpoints."""
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

    @cached_property
    def piece_bytes(self) -> np.ndarray:
        """UTF-8 bytes each piece stands for (float64, shape V); control pieces stand for none."""
        processor = self.processor
        sizes = np.zeros(self.vocab_size)
        for index in range(self.vocab_size):
            if processor.IsControl(index):
                continue
            piece = processor.IdToPiece(index).replace("\u2581", " ")
            sizes[index] = 1 if processor.IsByte(index) else len(piece.encode())
        return sizes

    def encode(self, text: str) -> list[int]:
        return self.processor.EncodeAsIds(text)

    def decode(self, ids: list[int]) -> str:
        return self.processor.DecodeIds(ids)
