"""Decoders with hypernetwork, softmax or linear attention in PyTorch, by their definition.

This file needs torch only; `load` needs safetensors too. Dimensions: B batch, T query position,
S key position, H heads, K query and key head size, U value head size, D model, E experts.
"""

import json
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RMS_HEAD_EPSILON = 1e-6
PREFIX = "decoder."  # of the names in a folder that transformers saved
ACTIVATIONS: dict[str, Any] = {
    "identity": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": partial(F.gelu, approximate="tanh"),
    "gelu_erf": F.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def load(folder: str | Path) -> "HylaDecoder":
    """The decoder of an exported folder, ready to run."""
    from safetensors.torch import load_file

    config = SimpleNamespace(**json.loads((Path(folder) / "config.json").read_text()))
    decoder = HylaDecoder(config)
    tensors = load_file(Path(folder) / "model.safetensors")
    decoder.load_state_dict({name.removeprefix(PREFIX): x for name, x in tensors.items()})
    return decoder.eval()


class HylaDecoder(nn.Module):
    """A pre-norm decoder from token ids to logits; `config` has the entries of config.json."""

    def __init__(self, config: Any):
        super().__init__()
        c = self.config = config
        self.embed = nn.Embedding(c.vocab_size, c.hidden_size)
        if c.position_embedding_type == "learned":
            self.position_embed = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.blocks = nn.ModuleList(Block(c, layer) for layer in range(c.num_hidden_layers))
        self.final_norm = norm(c)
        if not c.tie_word_embeddings:
            self.head = nn.Linear(c.hidden_size, c.vocab_size, bias=c.use_bias)
        # transformers sets it, and then _gradient_checkpointing_func too.
        self.gradient_checkpointing = False

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """float32 logits BxTxV of ids BxT; the mask is 0 where a row is padded."""
        return self.logits(self.states(self.embed(input_ids), attention_mask)[-1])

    def states(
        self,
        y_BxTxD: Tensor,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        codes: list[Tensor] | None = None,
    ) -> list[Tensor]:
        """What each block reads and then what the head reads, BxTxD each, from embedded tokens.

        `cache`, a Cache of transformers, holds the keys and values of the tokens before these; the
        mask covers those too. The list `codes` gets the latent code of each block, BxHxTxS.
        """
        past = 0 if cache is None else cache.get_seq_length()
        position_S = torch.arange(past + y_BxTxD.shape[1], device=y_BxTxD.device)
        position_T = position_S[past:]
        visible = (position_S <= position_T[:, None])[None, None]
        position_BxT = position_T.expand(y_BxTxD.shape[:2])
        if attention_mask is not None:
            visible = visible & attention_mask.bool()[:, None, None, :]
            position_BxT = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, past:]
        if self.config.position_embedding_type == "learned":
            y_BxTxD = y_BxTxD + self.position_embed(position_BxT)
        recompute = self.gradient_checkpointing and self.training
        if recompute and cache is not None:
            raise ValueError("Gradient checkpointing runs blocks again: give use_cache=False.")
        states = [y_BxTxD]
        for block in self.blocks:
            run = partial(self._gradient_checkpointing_func, block) if recompute else block
            y_BxTxD, code_BxHxTxS = run(y_BxTxD, position_BxT, visible, cache)
            states.append(y_BxTxD)
            if codes is not None:
                codes.append(code_BxHxTxS)
        return [*states[:-1], self.final_norm(y_BxTxD)]

    def logits(self, y_BxTxD: Tensor) -> Tensor:
        """float32 logits BxTxV of the last state."""
        c = self.config
        if c.tie_word_embeddings:
            logits = F.linear(y_BxTxD, self.embed.weight).float() * c.logit_scale
        else:
            logits = self.head(y_BxTxD).float()
        cap = c.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)


class Block(nn.Module):
    """u + feedforward(norm(u)) for u = y + attention(norm(y)), and the latent code."""

    def __init__(self, c: Any, layer: int):
        super().__init__()
        self.attention_norm = norm(c)
        self.attention = Attention(c, layer)
        self.feedforward_norm = norm(c)
        self.feedforward = FEEDFORWARDS[c.mlp_type](c)

    def forward(
        self, y_BxTxD: Tensor, position_BxT: Tensor, visible: Tensor, cache: Any
    ) -> tuple[Tensor, Tensor]:
        x_BxTxD = self.attention_norm(y_BxTxD)
        x_BxTxD, code_BxHxTxS = self.attention(x_BxTxD, position_BxT, visible, cache)
        u_BxTxD = y_BxTxD + x_BxTxD
        return u_BxTxD + self.feedforward(self.feedforward_norm(u_BxTxD)), code_BxHxTxS


class Attention(nn.Module):
    """Scores, their normalisation to the latent code, and the value network it configures.

    Scores, code and value network are computed in float32.
    """

    def __init__(self, c: Any, layer: int):
        super().__init__()
        kind = c.attention_pattern[layer % len(c.attention_pattern)]
        self.config, self.kind, self.layer = c, kind, layer
        heads, width = c.num_attention_heads, c.hidden_size
        self.query = nn.Linear(width, heads * c.head_dim, bias=c.use_bias)
        self.kv_heads = c.num_key_value_heads or heads
        self.key = nn.Linear(width, self.kv_heads * c.head_dim, bias=c.use_bias)
        self.value = nn.Linear(width, self.kv_heads * c.value_head_dim, bias=c.use_bias)
        self.out = nn.Linear(heads * c.value_head_dim, width, bias=c.use_bias)
        if c.qk_norm:
            self.query_norm = nn.RMSNorm(c.head_dim, eps=c.layer_norm_eps)
            self.key_norm = nn.RMSNorm(c.head_dim, eps=c.layer_norm_eps)
        if c.gated_attention:
            self.gate = nn.Linear(width, heads * c.value_head_dim, bias=False)
        if kind["value_depth"] == 2:
            shape = (heads, c.value_head_dim, c.value_head_dim)
            self.deep_kernel = nn.Parameter(torch.randn(shape) / math.sqrt(shape[0] * shape[1]))
        if c.position_embedding_type == "relative":
            table = torch.randn(heads, c.relative_attention_num_buckets)
            self.relative_bias = nn.Parameter(table / math.sqrt(table.shape[1]))

    def forward(
        self, x_BxTxD: Tensor, position_BxT: Tensor, visible: Tensor, cache: Any
    ) -> tuple[Tensor, Tensor]:
        c, heads = self.config, self.config.num_attention_heads
        q = self.query(x_BxTxD).unflatten(-1, (heads, -1))
        k, v = (f(x_BxTxD).unflatten(-1, (self.kv_heads, -1)) for f in (self.key, self.value))
        if c.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        if c.position_embedding_type == "rotary":
            q = rotate(q, position_BxT, c.rope_theta)
            k = rotate(k, position_BxT, c.rope_theta)
        if cache is not None:
            k_BxHxSxK, v_BxHxSxU = cache.update(k.transpose(1, 2), v.transpose(1, 2), self.layer)
            k, v = k_BxHxSxK.transpose(1, 2), v_BxHxSxU.transpose(1, 2)
        k, v = (x.repeat_interleave(heads // self.kv_heads, 2) for x in (k, v))
        s_BxHxTxS = torch.einsum("bthk,bshk->bhts", q.float() / math.sqrt(c.head_dim), k.float())
        if c.position_embedding_type == "relative":
            sizes = q.shape[1], k.shape[1]
            bucket_TxS = relative_buckets(*sizes, c.relative_attention_first_distances)
            s_BxHxTxS = s_BxHxTxS + self.relative_bias[:, bucket_TxS].float()
        a_BxHxTxS = normalize(s_BxHxTxS, visible, self.kind["normalization"])
        y_BxTxHxU = self.values(a_BxHxTxS, v.float())
        y_BxTxD = y_BxTxHxU.flatten(2).to(x_BxTxD.dtype)
        if c.gated_attention:
            y_BxTxD = y_BxTxD * self.gate(x_BxTxD).sigmoid()
        return self.out(y_BxTxD), a_BxHxTxS

    def values(self, a_BxHxTxS: Tensor, v_BxSxHxU: Tensor) -> Tensor:
        """What the value network that each code configures gives for each query, BxTxHxU."""
        phi = ACTIVATIONS[self.kind["activation"]]
        if self.kind["value_network"] == "linear":
            return torch.einsum("bhts,bshu->bthu", a_BxHxTxS, phi(v_BxSxHxU))
        z_BxTxSxU = phi(torch.einsum("bhts,bshu->btsu", a_BxHxTxS, v_BxSxHxU))
        if self.kind["value_depth"] == 2:
            kernel = self.deep_kernel.float()
            z_BxTxSxU = phi(torch.einsum("bhts,btsu,huw->btsw", a_BxHxTxS, z_BxTxSxU, kernel))
        return torch.einsum("bhts,btsu->bthu", a_BxHxTxS, z_BxTxSxU)


def normalize(s_BxHxTxS: Tensor, visible: Tensor, normalization: str) -> Tensor:
    """The latent code of scores; hidden pairs are 0, and so is a query that sees nothing."""
    if normalization.startswith("softmax"):
        hidden = torch.finfo(s_BxHxTxS.dtype).min
        s_BxHxTxS = s_BxHxTxS.masked_fill(~visible, hidden).softmax(-1)
    a_BxHxTxS = s_BxHxTxS.masked_fill(~visible, 0)
    if normalization.endswith("rms_head"):
        mean_square = a_BxHxTxS.square().mean(1, keepdim=True)
        a_BxHxTxS = a_BxHxTxS * (mean_square + RMS_HEAD_EPSILON).rsqrt()
    return a_BxHxTxS


def rotate(x_BxTxHxK: Tensor, position_BxT: Tensor, base: float) -> Tensor:
    """Rotary positions: dimension i is paired with i + K/2; angles in float32."""
    half = x_BxTxHxK.shape[-1] // 2
    frequency_K2 = base ** (-torch.arange(half, device=x_BxTxHxK.device).float() / half)
    angle = position_BxT[:, :, None, None].float() * frequency_K2
    cos, sin = angle.cos(), angle.sin()
    first, second = x_BxTxHxK.float().chunk(2, -1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return rotated.to(x_BxTxHxK.dtype)


def relative_buckets(queries: int, keys: int, first_distances: list[int]) -> Tensor:
    """T5's bucket of each query and key, TxS, of the first distance that falls in each bucket.

    The queries are the last of the keys. Keys after a query share the query's own.
    """
    position_S = torch.arange(keys)
    distance_TxS = (position_S[keys - queries :, None] - position_S).clamp(min=0)
    return torch.searchsorted(torch.tensor(first_distances), distance_TxS, right=True) - 1


class GeluMlp(nn.Module):
    """down(gelu(up(x)))."""

    def __init__(self, c: Any):
        super().__init__()
        self.up = nn.Linear(c.hidden_size, c.intermediate_size, bias=c.use_bias)
        self.down = nn.Linear(c.intermediate_size, c.hidden_size, bias=c.use_bias)

    def forward(self, x_BxTxD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BxTxD), approximate="tanh"))


class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases."""

    def __init__(self, c: Any):
        super().__init__()
        self.gate = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x_BxTxD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BxTxD)) * self.up(x_BxTxD))


class MixtureOfExperts(nn.Module):
    """The top experts of each token, weighted by the softmax of their gate values."""

    def __init__(self, c: Any):
        super().__init__()
        self.chosen = c.num_experts_per_tok
        width, inner, experts = c.hidden_size, c.intermediate_size, c.num_experts
        self.gate = nn.Parameter(torch.randn(width, experts) / math.sqrt(width))
        self.up = nn.Parameter(torch.randn(experts, width, inner) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, inner, width) / math.sqrt(inner))

    def forward(self, x_BxTxD: Tensor) -> Tensor:
        logits_BxTxE = x_BxTxD.float() @ self.gate.float()
        top, index = logits_BxTxE.topk(self.chosen, -1)
        weight_BxTxE = torch.zeros_like(logits_BxTxE).scatter(-1, index, top.softmax(-1))
        hidden = F.gelu(torch.einsum("btd,edf->btef", x_BxTxD, self.up), approximate="tanh")
        hidden = hidden * weight_BxTxE[..., None].to(hidden.dtype)
        return torch.einsum("btef,efd->btd", hidden, self.down)


FEEDFORWARDS: dict[str, Any] = {"gelu": GeluMlp, "swiglu": SwiGlu, "moe": MixtureOfExperts}


def norm(c: Any) -> nn.Module:
    """A norm of the residual stream."""
    return NORMS[c.norm_type](c)


NORMS: dict[str, Any] = {
    "layer": lambda c: nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps, bias=c.use_bias),
    "rms": lambda c: nn.RMSNorm(c.hidden_size, eps=c.layer_norm_eps),
}
