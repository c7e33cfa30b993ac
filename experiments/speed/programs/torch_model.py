"""The original Transformer as one would write it in PyTorch: its modules, its fused attention."""

# pyright: reportMissingImports=false

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention; self-attention makes queries, keys and values by one product."""

    def __init__(self, d_model: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, source: Tensor | None, mask: Tensor | None, causal: bool):
        """x: (B, T, D); source: of keys and values (None: x); mask: of real keys, (B, 1, 1, S)."""
        if source is None:
            q, k, v = self.query_key_value(x).chunk(3, dim=-1)
        else:
            d = x.shape[-1]
            weight, bias = self.query_key_value.weight, self.query_key_value.bias
            q = F.linear(x, weight[:d], bias[:d])
            k, v = F.linear(source, weight[d:], bias[d:]).chunk(2, dim=-1)
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in (q, k, v))
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=rate, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two products with ReLU and dropout between them."""

    def __init__(self, d_model: int, d_ff: int, dropout: float):
        super().__init__(
            nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model)
        )


class Layer(nn.Module):
    """A Post-LN layer of the encoder, or of the decoder, which attends to the source as well."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float, decoder: bool):
        super().__init__()
        self.attention = Attention(d_model, num_heads, dropout)
        self.cross = Attention(d_model, num_heads, dropout) if decoder else None
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(3 if decoder else 2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, source: Tensor | None, mask: Tensor):
        """mask: of the source's real tokens, (B, 1, 1, S)."""
        self_mask = mask if self.cross is None else None
        y = self.attention(x, None, self_mask, causal=self.cross is not None)
        x = self.norms[0](x + self.dropout(y))
        if self.cross is not None:
            x = self.norms[1](x + self.dropout(self.cross(x, source, mask, causal=False)))
        return self.norms[-1](x + self.dropout(self.feed_forward(x)))


class Transformer(nn.Module):
    """Encoder and decoder; one table for source, target and logits."""

    positions: Tensor

    def __init__(
        self,
        *,
        vocab_size: int,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float,
        length: int,
    ):
        super().__init__()
        sizes = (d_model, num_heads, d_ff, dropout)
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.register_buffer("positions", _sinusoids(length, d_model))
        self.encoder = nn.ModuleList(Layer(*sizes, decoder=False) for _ in range(num_layers))
        self.decoder = nn.ModuleList(Layer(*sizes, decoder=True) for _ in range(num_layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V) of source (B, S) and shifted target tokens (B, T); 0 is padding."""
        mask = (source != 0)[:, None, None, :]
        encoded, x = self._embed(source), self._embed(target)
        for layer in self.encoder:
            encoded = layer(encoded, None, mask)
        for layer in self.decoder:
            x = layer(x, encoded, mask)
        return F.linear(x, self.embedding.weight)

    def _embed(self, tokens: Tensor) -> Tensor:
        scaled = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: tokens.shape[1]])


def _sinusoids(length: int, d_model: int) -> Tensor:
    rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(1e4) / d_model))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
