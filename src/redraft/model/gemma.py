"""The DiffusionGemma text network: one stack of layers, run in two modes with the same weights.

    encode    E[tokens]·√d ─────────────────────────────► layers (causal)         ► norm ► next-token logits, if wanted
    denoise   norm(E[canvas]·√d + SC(soft embedding)) ──► layers (bidirectional)  ► norm ► canvas logits

The modes differ in the input, in what attention may see (`model/rows.py`), and in one scalar per layer. There is no
timestep input and no mask token: noise is random tokens, and the network reads the noise level off the canvas.
Section numbers refer to docs/model.md: equations 1.1-1.8, 2.1.
"""

from __future__ import annotations

import torch
from torch import nn

from redraft.cache import Prefix
from redraft.config import ModelConfig
from redraft.errors import RequestError
from redraft.model.attention import Attention
from redraft.model.kernels import FAST, Kernels
from redraft.model.linear import GatedMLP, NormScale, PackedTable, multiply
from redraft.model.moe import AnyExperts, Experts, Router
from redraft.model.packed import Packed, plain
from redraft.model.rows import IMAGE_ATTENTION, Context, Mode, Rows, SoftTokens, Span, by_mode
from redraft.shapes import Float, Int, Tensor


class DiffusionGemma(nn.Module):
    """The network. `weights/load.py` builds one from a checkpoint, `weights/build.py` one of random numbers.

    Token ids may be on the host: they are few, and their copy is asynchronous. `image_attention` decides which tokens
    see an image (`model/rows.py`). Raises RequestError for an unknown `image_attention`.
    """

    def __init__(self, config: ModelConfig, kernels: Kernels = FAST, image_attention: str = IMAGE_ATTENTION[0]) -> None:
        super().__init__()
        if image_attention not in IMAGE_ATTENTION:
            raise RequestError(f"image_attention is {image_attention!r}; supported: {', '.join(IMAGE_ATTENTION)}")
        self.config, self.kernels, self.image_attention = config, kernels, image_attention
        # Given a table, torch draws none: on the meta device that draw imports a compiler, a third of the loading time.
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size, _weight=table)
        self.self_conditioning = SelfConditioning(config, kernels)
        self.layers = nn.ModuleList(Layer(config, i, kernels) for i in range(len(config.layers)))
        self.norm = NormScale(config.hidden_size)

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    @property
    def table(self) -> Float[Tensor, "vocab hidden"] | Packed:
        """The embedding table, which is also the head."""
        embed: nn.Module = self.embed  # a plan may have replaced it by a packed table
        return embed.packed if isinstance(embed, PackedTable) else self.embed.weight

    @property
    def embed_scale(self) -> float:
        """√d, rounded to the parameter dtype as the reference does (53.066 becomes 53.0 in bfloat16)."""
        return float(torch.tensor(self.config.hidden_size**0.5, dtype=self.dtype))

    # -- the two modes, one sequence ---------------------------------------------------------------------------------

    def encode(
        self, tokens: Int[Tensor, "rows"], prefix: Prefix, images: tuple[SoftTokens, ...] = ()
    ) -> Float[Tensor, "rows hidden"]:
        """Causal pass over tokens that follow the prefix; they become prefix. Returns the normed hidden states."""
        rows = self.rows([Span(prefix, tokens.shape[0], Mode.ENCODE, images=images)])
        hidden = self.forward(tokens, None, rows)
        rows.commit()
        return hidden

    def denoise(
        self, canvas: Int[Tensor, "canvas"], soft: Float[Tensor, "canvas hidden"] | None, prefix: Prefix
    ) -> Float[Tensor, "canvas vocab"]:
        """Bidirectional pass over a canvas after the prefix, which does not grow. Returns soft-capped float32 logits.

        `soft` is the soft embedding of the previous step's distribution, None on a canvas's first step.
        """
        rows = self.rows([Span(prefix, canvas.shape[0], Mode.DENOISE)])
        return self.logits(self.forward(canvas, soft, rows))

    def rows(self, spans: list[Span]) -> Rows:
        """The context of a forward over these spans. Further steps may use it again while no prefix grows."""
        return Rows(self.config, spans, self.device, self.dtype, self.image_attention)

    # -- any mix of rows ---------------------------------------------------------------------------------------------

    def forward(
        self, tokens: Int[Tensor, "rows"], soft: Float[Tensor, "rows hidden"] | None, context: Context
    ) -> Float[Tensor, "rows hidden"]:
        """Normed hidden states of rows in any mix of modes; the context stores keys and values.

        `soft`, the soft embeddings, is read on canvas rows only; None means zero. Rows in which the context inserts
        soft tokens of images ignore their token ids.
        """
        x = self._input(tokens, soft, context)
        for layer in self.layers:
            x = layer(x, context)
        return self.kernels.norm(x, [self.norm.weight], self.config.norm_eps)[0]

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """The tied head, then 30·tanh(z/30) in float32 (spec 1.1). On encoded rows: next-token logits."""
        z = multiply(hidden, self.table).float()
        return torch.tanh(z / self.config.logit_cap) * self.config.logit_cap

    def soften(self, probabilities: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas hidden"]:
        """The soft embedding: probabilities times the embedding table, scaled like an embedding (spec 2.1)."""
        return multiply(probabilities.to(self.dtype), plain(self.table, self.dtype).T) * self.embed_scale

    def _input(self, tokens: Tensor, soft: Tensor | None, context: Context) -> Tensor:
        x: Tensor = self.embed(tokens.to(self.device, non_blocking=True)).to(self.dtype) * self.embed_scale
        if context.inserted is not None:
            x = x.index_copy(0, context.inserted.rows, context.inserted.embeddings)
        if context.is_canvas is False:
            return x
        conditioned: Tensor = self.self_conditioning(x, soft)
        return conditioned if context.is_canvas is True else torch.where(context.is_canvas, conditioned, x)


class Layer(nn.Module):
    """Attention, then a dense MLP and routed experts side by side, then one scalar on the whole stream (spec 1.6)."""

    encode_scalar: Tensor
    denoise_scalar: Tensor

    def __init__(self, config: ModelConfig, index: int, kernels: Kernels) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.kernels, self.eps = kernels, config.norm_eps
        self.input_norm = NormScale(hidden)
        self.attention = Attention(config, index, kernels)
        self.post_attention_norm = NormScale(hidden)
        self.pre_mlp_norm = NormScale(hidden)
        self.mlp = GatedMLP(hidden, config.intermediate_size)
        self.post_mlp_norm = NormScale(hidden)
        self.pre_experts_norm = NormScale(hidden)
        self.router = Router(hidden, config.num_experts, config.top_k_experts)
        self.experts: AnyExperts = Experts(hidden, config.moe_intermediate_size, config.num_experts)
        self.post_experts_norm = NormScale(hidden)
        self.post_ffw_norm = NormScale(hidden)
        # Equal in the released weights, but the format stores both and the reference honours both (spec 1.8).
        self.register_buffer("encode_scalar", torch.empty(1))
        self.register_buffer("denoise_scalar", torch.empty(1))

    def forward(self, x: Float[Tensor, "rows hidden"], context: Context) -> Float[Tensor, "rows hidden"]:
        if self.kernels.layer is not None and isinstance(context, Rows):
            return self.kernels.layer(self, x, context)
        q, k, v = self.before(x, *context.rotation(self.attention.layer))
        mixed = context.attend(self.attention.index, q, k, v, self.kernels.attend)
        return self.after(x, mixed, by_mode(context, self.encode_scalar, self.denoise_scalar))

    def before(self, x: Float[Tensor, "rows hidden"], cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the rows, before attention."""
        return self.attention.heads_of(self._norm(x, self.input_norm), cos, sin)

    def after(self, x: Float[Tensor, "rows hidden"], mixed: Tensor, scalar: Tensor) -> Float[Tensor, "rows hidden"]:
        """All of the layer behind attention, whose mixed values are [rows, heads, head_dim]."""
        attended = self.attention.out(mixed.reshape(x.shape[0], -1))
        a = self._norm(attended, self.post_attention_norm, x)
        for_mlp, for_experts, for_router = self.kernels.norm(
            a, [self.pre_mlp_norm.weight, self.pre_experts_norm.weight, None], self.eps
        )
        dense = self._norm(self.mlp(for_mlp), self.post_mlp_norm)
        weights, chosen = self.router(for_router)
        routed = self._norm(self.kernels.experts(self.experts, for_experts, weights, chosen), self.post_experts_norm)
        return self._norm(dense + routed, self.post_ffw_norm, a) * scalar

    def _norm(self, x: Tensor, scale: NormScale, onto: Tensor | None = None) -> Tensor:
        return self.kernels.norm(x, [scale.weight], self.eps, onto)[0]


class SelfConditioning(nn.Module):
    """Adds the soft embedding of the last step to the canvas embeddings (spec 2.1).

    Without a previous step the signal is an exact zero vector, which the MLP maps to zero. The closing norm always
    runs: it distinguishes canvas rows from encoded rows.
    """

    def __init__(self, config: ModelConfig, kernels: Kernels) -> None:
        super().__init__()
        self.kernels, self.eps = kernels, config.norm_eps
        self.pre_norm = NormScale(config.hidden_size)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(
        self, x: Float[Tensor, "rows hidden"], soft: Float[Tensor, "rows hidden"] | None
    ) -> Float[Tensor, "rows hidden"]:
        if soft is not None:
            x = x + self.mlp(self.kernels.norm(soft, [self.pre_norm.weight], self.eps)[0])
        return self.kernels.norm(x, [None], self.eps)[0]
