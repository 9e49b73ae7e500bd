"""Classify texts of different lengths, in padded and masked batches.

sacristan text with configs/text.yaml
sacristan text with data.path=mine.csv data.columns=review data.target=stars data.task=classification
sacristan text with fast data.path=my_texts             a folder with a folder of *.txt for each class
sacristan text predict with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt \
    data.path=new.txt                                               a text on each line

By default the texts are docstrings of Python's standard library, and their classes the packages they come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sacristan.experiments import supervised
from sacristan.experiments.experiment import Experiment

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sacristan.ingredients.datasets.fitted import Preparation

__all__ = ["ex", "network"]

ex = Experiment("text", ingredients=supervised.ingredients())
supervised.compose(ex)


@ex.named_config
def usual() -> None:
    """Texts in batches of like lengths, a transformer; docstrings."""
    data = {"name": "text", "sampler": "by_length"}
    model = {"name": "sacristan.experiments.text:network"}


@ex.named_config
def fast() -> None:
    """Two epochs of a small network on the first words of a few hundred texts, to try things out."""
    data = {"limit": 300, "options": {"max_length": 32}}
    model = {"options": {"width": 16}}
    epochs = 2


ex.always("usual")


def network(
    num_outputs: int, preparation: Preparation, width: int = 64, depth: int = 1, heads: int = 4, dropout: float = 0.2
) -> nn.Module:
    """Return a transformer encoder of texts, codes of words (B, L) int64, to scores (B, num_outputs).

    `preparation` has the vocabulary and the maximum length. A `depth` of 0 takes the mean of the words; `heads` must
    divide `width`. Padding, codes of 0, is masked and changes nothing.

    Source: Vaswani et al., Attention Is All You Need, https://arxiv.org/abs/1706.03762
    """
    import torch
    from torch import nn

    from sacristan.ingredients.datasets.fitted import PADDING
    from sacristan.ingredients.errors import ModelError

    vocabulary = preparation.vocabulary
    if vocabulary is None:
        raise ModelError("model.name: this network is for texts; write data.name=text, or name another network")
    if heads < 1 or width % heads:
        raise ModelError(f"model.options: {heads} heads do not divide a width of {width}; give numbers that fit")

    num_codes, max_length = vocabulary.num_codes, vocabulary.max_length

    class TextNetwork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(num_codes, width, padding_idx=PADDING)
            self.places = nn.Embedding(max_length, width)
            options: dict[str, Any] = {"activation": "gelu", "batch_first": True, "norm_first": True}
            layers = [nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, **options) for _ in range(depth)]
            self.layers = nn.ModuleList(layers)
            self.head = nn.Sequential(nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, num_outputs))

        def forward(self, words: Tensor) -> Tensor:
            is_padding = words == PADDING
            features = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
            for layer in self.layers:
                features = layer(features, src_key_padding_mask=is_padding)
            total = features.masked_fill(is_padding[..., None], 0).sum(1)
            return self.head(total / (~is_padding).sum(1, keepdim=True).clamp(min=1))

    return TextNetwork()


if __name__ == "__main__":
    ex.run_commandline()
