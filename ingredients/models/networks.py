"""The networks that ship with the lab, and a small GPT.

Those of `NETWORKS`, by `model.name`, return raw scores (B, num_outputs), without a softmax, in any dtype that autocast
chooses. To add one, add a row there and its options in `ingredients/model.py`.

Shapes: B batch, C channels, H height (of the GPT, heads), W width, D width of a layer or a token, N and T tokens, V
tokens in the vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from einops.layers.torch import Rearrange, Reduce
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


def _activation(name: str) -> nn.Module:
    if name not in ACTIVATIONS:
        raise ValueError(f"activation is {name!r}, expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def _probability(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}, expected at least 0 and below 1")
    return value


def _at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}, expected at least 1")


def _image(input_shape: Sequence[int]) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise ValueError(f"inputs have shape {tuple(input_shape)}, expected images (channels, height, width)")
    channels, height, width = input_shape
    return channels, height, width


class _Chain(nn.Sequential):
    """A Sequential whose slices are plain Sequentials; torch would call the constructor of the subclass."""

    def __getitem__(self, index: int | slice) -> nn.Module:
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)


class MLP(_Chain):
    """Fully connected layers: (B, ...) -> (B, num_outputs).

    Args:
        input_shape: Shape of one input, which is flattened.
        num_outputs: Number of scores.
        hidden: Widths of the hidden layers.
        activation: One of `ACTIVATIONS`.
        dropout: Probability of zeroing a hidden unit.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        hidden: Sequence[int] = (128, 128),
        activation: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        widths = [math.prod(input_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(widths):
            _at_least_one(hidden=after)
            layers += [nn.Linear(before, after), _activation(activation)]
            if _probability("dropout", dropout):
                layers.append(nn.Dropout(dropout))
        super().__init__(*layers, nn.Linear(widths[-1], num_outputs))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and shortcut: (B, C, H, W) -> (B, D, H / stride, W / stride)."""

    def __init__(self, channels: int, width: int, stride: int, activation: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            _activation(activation),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.activation = _activation(activation)

    def forward(self, images: Tensor) -> Tensor:
        return self.activation(self.body(images) + self.shortcut(images))


class CNN(_Chain):
    """A small residual network: (B, C, H, W) -> (B, num_outputs).

    Args:
        input_shape: (C, H, W) of one image.
        num_outputs: Number of scores.
        widths: Channels of each stage; each stage after the first halves height and width.
        blocks: Residual blocks in each stage.
        activation: One of `ACTIVATIONS`.
        dropout: Probability of zeroing a feature before the last layer.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        widths: Sequence[int] = (32, 64),
        blocks: int = 1,
        activation: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        channels, height, width = _image(input_shape)
        _at_least_one(blocks=blocks, **{f"widths[{stage}]": size for stage, size in enumerate(widths)})
        if not widths:
            raise ValueError("widths is empty, expected the channels of at least one stage")
        if min(height, width) < 2 ** (len(widths) - 1):
            raise ValueError(
                f"{len(widths)} stages halve images of {height}x{width} pixels to nothing; give fewer widths"
            )
        stem = [
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(widths[0]),
            _activation(activation),
        ]
        stages, before = [], widths[0]
        for stage, after in enumerate(widths):
            for block in range(blocks):
                stages.append(ResidualBlock(before, after, 2 if stage and not block else 1, activation))
                before = after
        head = [
            Reduce("b c h w -> b c", "mean"),
            nn.Dropout(_probability("dropout", dropout)),
            nn.Linear(before, num_outputs),
        ]
        super().__init__(*stem, *stages, *head)


class Attention(nn.Module):
    """Multi-head self-attention: (B, N, D) -> (B, N, D)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.split = nn.Sequential(nn.Linear(width, 3 * width), Rearrange("b n (k h d) -> k b h n d", k=3, h=heads))
        self.merge = nn.Sequential(Rearrange("b h n d -> b n (h d)"), nn.Linear(width, width), nn.Dropout(dropout))

    def forward(self, tokens: Tensor) -> Tensor:
        queries, keys, values = self.split(tokens)
        return self.merge(nn.functional.scaled_dot_product_attention(queries, keys, values))


class EncoderLayer(nn.Module):
    """Attention and a two-layer perceptron, each normalised before and added to its input: (B, N, D) -> (B, N, D)."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, activation: str, dropout: float) -> None:
        super().__init__()
        inner = int(width * mlp_ratio)
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, dropout))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, inner),
            _activation(activation),
            nn.Dropout(dropout),
            nn.Linear(inner, width),
            nn.Dropout(dropout),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(tokens)
        return tokens + self.mlp(tokens)


class ViT(nn.Module):
    """A vision transformer with averaged tokens: (B, C, H, W) -> (B, num_outputs).

    Source: Dosovitskiy et al., An Image Is Worth 16x16 Words, https://arxiv.org/abs/2010.11929; learned positions,
    global average pooling instead of a class token as in Beyer et al., https://arxiv.org/abs/2205.01580

    Args:
        input_shape: (C, H, W) of one image.
        num_outputs: Number of scores.
        patch: Height and width of a patch, pixels; must divide those of the image.
        width: Width D of a token.
        depth: Encoder layers.
        heads: Attention heads; must divide the width.
        mlp_ratio: Width of the perceptron's hidden layer over D.
        activation: One of `ACTIVATIONS`.
        dropout: Probability of zeroing a feature.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        patch: int = 2,
        width: int = 64,
        depth: int = 3,
        heads: int = 4,
        mlp_ratio: float = 2.0,
        activation: str = "gelu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels, image_height, image_width = _image(input_shape)
        _at_least_one(
            patch=patch, width=width, depth=depth, heads=heads, **{"width * mlp_ratio": int(width * mlp_ratio)}
        )
        if image_height % patch or image_width % patch:
            raise ValueError(f"patches of {patch} do not divide images of {image_height}x{image_width} pixels")
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        _probability("dropout", dropout)
        tokens = (image_height // patch) * (image_width // patch)
        self.embed = nn.Sequential(
            Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=patch, q=patch),
            nn.Linear(channels * patch * patch, width),
        )
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, width), std=0.02))
        self.encoder = nn.Sequential(
            *(EncoderLayer(width, heads, mlp_ratio, activation, dropout) for _ in range(depth))
        )
        self.head = nn.Sequential(nn.LayerNorm(width), Reduce("b n d -> b d", "mean"), nn.Linear(width, num_outputs))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(images) + self.positions))


NETWORKS = {"mlp": MLP, "cnn": CNN, "vit": ViT}


class CausalAttention(nn.Module):
    """Multi-head self-attention to earlier tokens only: (B, T, D) -> (B, T, D)."""

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
        _at_least_one(context=context, width=width, depth=depth, heads=heads, mlp_ratio=int(width * mlp_ratio))
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        _probability("dropout", dropout)
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
