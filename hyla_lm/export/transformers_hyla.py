"""The decoder and its tokenizer as transformers' Auto classes load them (trust_remote_code)."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import sentencepiece
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizer,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from .modeling_hyla import HylaDecoder

VOCABULARY = "tokenizer.model"
FILES = {"vocab_file": VOCABULARY}
INPUTS = ["input_ids", "attention_mask"]
# The cache's name; transformers before 5.24 has the second.
NAMES = [f.name for f in dataclasses.fields(CausalLMOutputWithPast)]
CACHE = "cache" if "cache" in NAMES else "past_key_values"


class HylaConfig(PretrainedConfig):
    """The entries of config.json."""

    model_type = "hyla"


class HylaForCausalLM(PreTrainedModel, GenerationMixin):
    """HylaDecoder for transformers."""

    config_class = HylaConfig
    base_model_prefix = "decoder"
    supports_gradient_checkpointing = True

    def __init__(self, config: Any):
        super().__init__(config)
        self.decoder = HylaDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.embed = value

    def get_output_embeddings(self) -> nn.Module | None:
        return None if self.config.tie_word_embeddings else self.decoder.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.decoder.head = new_embeddings

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """transformers 5.0 gives `cache_position` too, which here follows from the cache."""
        prepared = super().prepare_inputs_for_generation(input_ids, **kwargs)
        prepared.pop("cache_position", None)
        return prepared

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Logits BxTxV; with `labels` (-100 is ignored) also the mean loss of the next tokens.

        `attentions` are the latent codes, BxHxTxS each. `past_key_values` is what transformers
        before 5.24 call `cache`.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache()
        y_BxTxD = self.decoder.embed(input_ids) if inputs_embeds is None else inputs_embeds
        c = self.config
        with_codes, with_states = output_attentions, output_hidden_states
        with_codes = c.output_attentions if with_codes is None else with_codes
        with_states = c.output_hidden_states if with_states is None else with_states
        codes: list[Tensor] = []
        states = self.decoder.states(y_BxTxD, attention_mask, cache, codes if with_codes else None)
        logits = self.decoder.logits(states[-1])
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            )
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=tuple(states) if with_states else None,
            attentions=tuple(codes) if with_codes else None,
            **{CACHE: cache},
        )
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

    def _decode(
        self, token_ids: int | list[int], skip_special_tokens: bool = False, **options: Any
    ) -> str:
        """Ids without BOS continue a text, so their first space stays; none is cleaned up."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        tokens = self.convert_ids_to_tokens(ids, skip_special_tokens=skip_special_tokens)
        if self.bos_token_id in ids:
            return self.convert_tokens_to_string(tokens)
        return self.convert_tokens_to_string(["a", *tokens])[1:]

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
