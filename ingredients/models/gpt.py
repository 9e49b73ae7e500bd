"""A small GPT: a decoder-only transformer in plain torch.

Shapes: B sequences, T tokens of each, V tokens in the vocabulary, D the width of a token, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GPT", "continue_tokens"]


class CausalAttention(nn.Module):
    """Multi-head self-attention to earlier tokens only: (B, T, D) -> (B, T, D).

    Source: Vaswani et al., Attention Is All You Need, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.split = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        # (B, T, 3 D) -> 3 of (B, H, T, D / H)
        parts = self.split(tokens).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, is_causal=True)
        return self.merge(seen.transpose(1, 2).reshape(batch, length, width))


class DecoderLayer(nn.Module):
    """Attention and a two-layer perceptron, each normalised before and added to its input: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, dropout: float) -> None:
        super().__init__()
        inner = int(width * mlp_ratio)
        self.attention = nn.Sequential(nn.LayerNorm(width), CausalAttention(width, heads, dropout), nn.Dropout(dropout))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width), nn.Dropout(dropout)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(tokens)
        return tokens + self.mlp(tokens)


class GPT(nn.Module):
    """Scores of the next token at each token: (B, T) -> (B, T, V), for any T up to the context.

    Embedding and head share their weights. Initialised as GPT-2, with smaller weights at the end of each branch.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners (GPT-2), 2019

    Args:
        input_shape: (T,), the context: the maximum length of a sequence.
        num_outputs: Size of the vocabulary, V.
        width: Width D of a token.
        depth: Decoder layers.
        heads: Attention heads; must divide the width.
        mlp_ratio: Width of the perceptron's hidden layer over D.
        dropout: Probability of zeroing a feature.

    Example:
        model = GPT((64,), 96)
        scores = model(torch.zeros(8, 64, dtype=torch.int64))
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ValueError(f"got inputs of shape {tuple(input_shape)}, expected sequences of tokens, (T,)")
        (context,) = input_shape
        sizes = {
            "context": context,
            "width": width,
            "depth": depth,
            "heads": heads,
            "mlp_ratio": int(width * mlp_ratio),
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}, expected at least 1")
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}, expected a probability below 1")
        self.context = context
        self.embed = nn.Embedding(num_outputs, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Sequential(*(DecoderLayer(width, heads, mlp_ratio, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self._draw_weights(depth)

    def _draw_weights(self, depth: int) -> None:
        nn.init.normal_(self.positions, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Linear):
                ends_branch = name.endswith((".attention.1.merge", ".mlp.3"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * depth) if ends_branch else 0.02)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"got {length} tokens, expected at most {self.context}, the context")
        hidden = self.decoder(self.dropout(self.embed(tokens) + self.positions[:length]))
        return functional.linear(self.norm(hidden), self.embed.weight)


@torch.no_grad()
def continue_tokens(
    model: GPT, tokens: Tensor, length: int, temperature: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Extend tokens (T,), at least one, by `length` tokens drawn from the predictions of a model in evaluation mode.

    The model sees the last tokens within its context. The scores are divided by `temperature`; 0 always picks the most
    likely token. The generator is on the CPU; None uses the global one.
    """
    if not len(tokens):
        raise ValueError("got no token to continue, expected at least one")
    if length < 0 or not 0 <= temperature < math.inf:
        raise ValueError(f"got length {length} and temperature {temperature}, expected 0 or more of both")
    for _ in range(length):
        scores = model(tokens[None, -model.context :])[0, -1].float().cpu()
        if temperature == 0:
            chosen = scores.argmax(keepdim=True)
        else:
            chosen = torch.multinomial((scores / temperature).softmax(0), 1, generator=generator)
        tokens = torch.cat([tokens, chosen.to(tokens.device)])
    return tokens
