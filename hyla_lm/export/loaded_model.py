"""A trained model in Python: text in; text, logits or latent codes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import ModelConfig
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.flops import count_parameters
from hyla_lm.model.inspection import attention_layers
from hyla_lm.tasks.sampling import Sampler, Sampling
from hyla_lm.tasks.scoring import Score, score

TextOrIds = str | Sequence[int] | np.ndarray


@dataclass(frozen=True, repr=False)
class LoadedModel:
    """A language model with its parameters and tokenizer.

    Where a text or ids can be given, a text becomes BOS and its pieces, as documents begin in
    training; ids are taken as they are. `sequence_length` is T of training, and `step` the number
    of updates made.
    """

    decoder: Decoder
    params: Any
    tokenizer: Tokenizer
    sequence_length: int
    step: int

    def __repr__(self) -> str:
        attention, size = " + ".join(self.config.pattern), count_parameters(self.params)
        return f"LoadedModel({attention}, {size:,} parameters, step {self.step})"

    @property
    def config(self) -> ModelConfig:
        """The settings of the model."""
        return self.decoder.config

    def generate(
        self,
        prompt: str,
        max_tokens: int = 100,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> str:
        """A continuation of the prompt up to EOS, without the prompt.

        temperature 0 takes the likeliest token; top_k 0 and top_p 1 keep all. Beyond
        `sequence_length` the model sees a window of the last tokens.
        """
        sampling = Sampling(max_tokens, temperature, top_k, top_p, seed)
        return self.sampler.sample([prompt], sampling)[0].text

    @cached_property
    def sampler(self) -> Sampler:
        """What samples from the model, many prompts together or in pieces as they come."""
        return Sampler(self.decoder, self.params, self.tokenizer, self.sequence_length)

    def score(self, text: str) -> Score:
        """The probability of a text."""
        return score(self.decoder, self.params, self.tokenizer, text, self.sequence_length)

    def logits(self, text_or_ids: TextOrIds) -> np.ndarray:
        """float32 logits of the next token at every position, TxV."""
        return np.asarray(_logits(self.decoder, self.params, self._row(text_or_ids))[0])

    def latent_codes(
        self, text_or_ids: TextOrIds, layers: Sequence[int] | None = None
    ) -> dict[int, np.ndarray]:
        """The latent code of every query and key by layer number from 0, a HxTxS array each.

        code[:, t, s] configures the value network that query t applies to key s; it is 0 where
        the query does not see the key. In softmax attention it is the attention weight.
        """
        known = range(self.config.num_layers)
        chosen = tuple(known if layers is None else layers)
        if strange := [layer for layer in chosen if layer not in known]:
            raise UserError(
                f"layers names {strange[0]!r} but the layers are 0 to {known[-1]}: correct it."
            )
        codes = _latent_codes(self.decoder, chosen, self.params, self._row(text_or_ids))
        return {layer: np.asarray(code) for layer, code in zip(chosen, codes, strict=True)}

    def ids(self, text: str) -> list[int]:
        """BOS and the pieces of a text."""
        return [self.tokenizer.bos, *self.tokenizer.encode(text)]

    def _row(self, text_or_ids: TextOrIds) -> jax.Array:
        """One row of ids, 1xT; raises UserError for ids that the model does not have."""
        ids = self.ids(text_or_ids) if isinstance(text_or_ids, str) else text_or_ids
        row = np.asarray(ids)
        size, config = self.tokenizer.vocab_size, self.config
        if row.ndim != 1 or row.size == 0 or row.dtype.kind not in "iu":
            raise UserError("ids must be a text or one row of at least one integer.")
        if row.min() < 0 or row.max() >= size:
            raise UserError(f"ids must be from 0 to {size - 1}, the pieces of the tokenizer.")
        if config.positions == "learned" and row.size > config.max_length:
            raise UserError(
                f"{row.size} ids exceed ModelConfig.max_length = {config.max_length}, the rows of "
                "the table of positions: shorten the text."
            )
        return jnp.asarray(row[None], jnp.int32)


@partial(jax.jit, static_argnums=0)
def _logits(decoder: Decoder, params: Any, ids_1xT: jax.Array) -> Any:
    return decoder.apply({"params": params}, ids_1xT)


@partial(jax.jit, static_argnums=(0, 1))
def _latent_codes(
    decoder: Decoder, layers: tuple[int, ...], params: Any, ids_1xT: jax.Array
) -> list[jax.Array]:
    views = attention_layers(decoder, params, ids_1xT)
    return [views[layer].code_BxHxTxS[0] for layer in layers]
