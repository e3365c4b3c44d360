"""What a decoder is made of: its settings, its inputs and its outputs."""

from dataclasses import dataclass, replace

from hyla_lm.attention.attend import IMPLEMENTATIONS
from hyla_lm.attention.spec import ACTIVATIONS, VARIANTS, AttentionSpec
from hyla_lm.config.declare import configurable, setting, wrong_choice
from hyla_lm.errors import UserError
from hyla_lm.model.layers import FEEDFORWARDS, NORMS, ROTARY_BASE

LONGEST_ROW = 2**20  # tokens
POSITIONS = ("rotary", "relative", "learned", "none")


@configurable
@dataclass(frozen=True)
class ModelConfig:
    """A pre-norm decoder: sizes, attention pattern, positions, feed-forward and precision."""

    num_layers: int = setting(6, "N, blocks", minimum=1, maximum=1000)
    model_dim: int = setting(512, "D, width of the residual stream", minimum=1)
    num_heads: int = setting(8, "H, heads; in HYLA the size of the latent code", minimum=1)
    head_dim: int = setting(64, "K, size of a query and key head", minimum=1)
    value_dim: int | None = setting(None, "U, size of a value head; None takes head_dim", minimum=1)
    num_kv_heads: int | None = setting(
        None,
        "heads of keys and values of softmax layers, each for as many query heads; None takes H",
        minimum=1,
    )
    mlp_dim: int = setting(2048, "F, width of the feed-forward layer", minimum=1)
    attention: str | tuple[str, ...] = setting(
        "hyla",
        "a variant, or a pattern such as ('hyla', 'softmax') repeated over the layers",
        explained=dict.fromkeys(VARIANTS, ""),
    )
    value_activation: str | None = setting(
        None,
        "phi of the hypernetwork layers; None takes the variant's",
        choices=(None, *ACTIVATIONS),
    )
    attention_implementation: str = setting(
        "auto",
        "how attention is computed; all but auto are for comparisons",
        choices=IMPLEMENTATIONS,
    )
    attention_dropout: float = setting(
        0.0, "share of codes dropped, one mask for all heads", minimum=0, maximum=0.9999
    )
    qk_norm: bool = setting(False, "RMS-normalise queries and keys over K, with learned scales")
    gated_attention: bool = setting(
        False, "multiply each unit of each head by sigmoid(x W_g), before the output projection"
    )
    causal: bool = setting(True, "whether a token sees only earlier tokens")
    positions: str = setting("rotary", "kind of positions", choices=POSITIONS)
    rope_theta: float = setting(
        ROTARY_BASE, "base of rotary positions: wavelengths go up to 2 pi times it", above=1
    )
    relative_buckets: int = setting(32, "buckets of a layer's T5 bias", minimum=2, maximum=4096)
    relative_max_distance: int = setting(
        128, "distance from which T5 buckets do not differ", minimum=1, maximum=LONGEST_ROW
    )
    max_length: int = setting(512, "rows of the table of learned positions", minimum=1)
    feedforward: str = setting("gelu", "kind of feed-forward layer", choices=FEEDFORWARDS)
    num_experts: int = setting(5, "E, experts of a moe layer", minimum=1)
    experts_per_token: int = setting(2, "experts that a token is routed to", minimum=1)
    norm: str = setting(
        "layer", "LayerNorm or RMSNorm (no mean, no bias) of the residual stream", choices=NORMS
    )
    use_bias: bool = setting(True, "whether dense layers and norms have biases")
    tie_embeddings: bool = setting(True, "whether the head is the token table")
    scale_tied_logits: bool = setting(True, "whether tied logits are divided by sqrt(D)")
    logit_soft_cap: float | None = setting(
        None, "cap of logits: cap * tanh(logits / cap); None has none", minimum=1e-3, maximum=1e6
    )
    base_width: int | None = setting(
        None,
        "model_dim at which initialisation and learning rate were tuned, to keep them at this one "
        "(muP); None is the standard parametrisation",
        minimum=1,
    )
    base_head_dim: int | None = setting(
        None, "head_dim at base_width; None is head_dim, so that heads grew in number", minimum=1
    )
    dtype: str = setting("bfloat16", "dtype of activations", choices=("bfloat16", "float32"))
    remat: bool = setting(False, "recompute each block in the backward pass to save memory")
    scan_layers: bool = setting(False, "compile one repeat of the pattern and loop over it")

    def check(self) -> None:
        for name in self.pattern:
            if name not in VARIANTS:
                raise wrong_choice(f"ModelConfig.attention = {name!r}", VARIANTS)
        if not self.pattern or self.num_layers % len(self.pattern):
            raise UserError(
                f"ModelConfig.num_layers = {self.num_layers} is no multiple of the "
                f"{len(self.pattern)} entries of ModelConfig.attention: change one."
            )
        if self.positions == "relative" and self.relative_max_distance <= self.relative_buckets / 2:
            raise UserError(
                f"ModelConfig.relative_max_distance = {self.relative_max_distance} must exceed "
                f"half of ModelConfig.relative_buckets = {self.relative_buckets}: raise it."
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise UserError(
                f"ModelConfig.head_dim = {self.head_dim} is odd, so rotary positions cannot split "
                "it: make it even or change ModelConfig.positions."
            )
        if self.feedforward == "moe" and self.experts_per_token > self.num_experts:
            raise UserError("ModelConfig.experts_per_token exceeds ModelConfig.num_experts.")
        if self.base_head_dim and not self.base_width:
            raise UserError(
                f"ModelConfig.base_head_dim = {self.base_head_dim} needs ModelConfig.base_width: "
                "set it to the model_dim of that model."
            )
        if self.qk_norm and self.base_head_dim not in (None, self.head_dim):
            raise UserError(
                f"ModelConfig.base_head_dim = {self.base_head_dim} has no rules for "
                "ModelConfig.qk_norm: keep head_dim and let the number of heads grow."
            )
        if self.num_kv_heads and {*self.pattern} != {"softmax"}:
            raise UserError(
                f"ModelConfig.num_kv_heads = {self.num_kv_heads} is for softmax attention only, "
                f"and ModelConfig.attention = {self.attention!r}: take one out."
            )
        if self.num_heads % self.kv_heads:
            raise UserError(
                f"ModelConfig.num_kv_heads = {self.num_kv_heads} does not divide "
                f"ModelConfig.num_heads = {self.num_heads}: change one."
            )

    @property
    def pattern(self) -> tuple[str, ...]:
        return (self.attention,) if isinstance(self.attention, str) else self.attention

    @property
    def value_size(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    def spec(self, layer: int) -> AttentionSpec:
        """The attention of a layer."""
        spec = VARIANTS[self.pattern[layer % len(self.pattern)]]
        if spec.value_network == "hypernetwork" and self.value_activation:
            return replace(spec, activation=self.value_activation)
        return spec

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer decodes from a state of constant size instead of a key-value cache."""
        return self.spec(layer).is_recurrent and self.causal and self.positions != "relative"


@dataclass(frozen=True)
class Tokens:
    """Token ids in, logits over the vocabulary out."""

    vocab_size: int


@dataclass(frozen=True)
class Features:
    """Dense features in; dense outputs out, of the last `answers` positions or of all.

    What only other positions need is not computed, unless layers are scanned.
    """

    input_size: int
    output_size: int
    answers: int | None = None
