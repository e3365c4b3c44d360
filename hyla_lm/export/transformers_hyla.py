"""The decoder and its tokenizer as transformers' Auto classes load them (trust_remote_code)."""

import shutil
from pathlib import Path
from typing import Any

import sentencepiece
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, PreTrainedTokenizer
from transformers.modeling_outputs import CausalLMOutput

from .modeling_hyla import HylaDecoder

VOCABULARY = "tokenizer.model"
FILES = {"vocab_file": VOCABULARY}
INPUTS = ["input_ids", "attention_mask"]


class HylaConfig(PretrainedConfig):
    """The entries of config.json."""

    model_type = "hyla"


class HylaForCausalLM(PreTrainedModel, GenerationMixin):
    """HylaDecoder for transformers. There is no key-value cache: each step reads the whole row."""

    config_class = HylaConfig
    base_model_prefix = "decoder"

    def __init__(self, config: Any):
        super().__init__(config)
        self.decoder = HylaDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embed

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Logits BxTxV; with `labels` (-100 is ignored) also the mean loss of the next tokens.

        `past_key_values` is what transformers before 5.24 call `cache`.
        """
        if use_cache or cache is not None or past_key_values is not None:
            raise ValueError("HYLA has no key-value cache here: give use_cache=False.")
        logits = self.decoder(input_ids, attention_mask)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            )
        output = CausalLMOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output


class HylaTokenizer(PreTrainedTokenizer):
    """The SentencePiece model; a text begins with BOS, and never holds special tokens itself."""

    vocab_files_names = FILES
    model_input_names = INPUTS

    def __init__(self, vocab_file: str, **options: Any):
        self.vocab_file = vocab_file
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=vocab_file)
        super().__init__(
            **{"split_special_tokens": True, "special_tokens_pattern": "bos", **options}
        )

    @property
    def vocab_size(self) -> int:
        return self.pieces.GetPieceSize()

    def get_vocab(self) -> dict[str, int]:
        return {self.pieces.IdToPiece(i): i for i in range(self.vocab_size)}

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self.pieces.DecodePieces(tokens)

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        name = f"{filename_prefix}-{VOCABULARY}" if filename_prefix else VOCABULARY
        path = Path(save_directory) / name
        if path.resolve() != Path(self.vocab_file).resolve():
            shutil.copyfile(self.vocab_file, path)
        return (str(path),)

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return self.pieces.EncodeAsPieces(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.pieces.PieceToId(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.pieces.IdToPiece(index)
