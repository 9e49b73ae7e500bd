"""Learn from a table, a csv with numbers, categories and gaps, and predict new rows.

sacristan tabular with configs/tabular.yaml
sacristan tabular with data.path=mine.csv data.target=price
sacristan tabular with fast data.path=mine.csv data.categorical='["zip", "floor"]'
sacristan tabular predict with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt \
    data.path=new.csv

Columns of text are categories, and get embeddings. The target, by default the last column, is a class if it is text or
whole numbers, else a number. A new csv may have its columns in any order, gaps, and unknown categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sacristan.experiments import supervised
from sacristan.experiments.experiment import Experiment

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sacristan.ingredients.datasets.fitted import Preparation

__all__ = ["embedding_size", "ex", "network"]

ex = Experiment("tabular", ingredients=supervised.ingredients())
supervised.compose(ex)


@ex.named_config
def usual() -> None:
    """Categories as codes, gaps filled, embeddings; 442 patients that come with the lab."""
    data = {"path": "configs/diabetes.csv", "categorical": "auto", "encoding": "codes", "missing": "fill"}
    model = {"name": "sacristan.experiments.tabular:network"}


@ex.named_config
def fast() -> None:
    """Two epochs of a narrow network on a few hundred rows, to try things out."""
    data = {"limit": 300}
    model = {"options": {"hidden": [16]}}
    epochs = 2


ex.always("usual")


def embedding_size(num_values: int) -> int:
    """Return 1.6 times the 0.56th power of the values, at most 50: https://docs.fast.ai/tabular.model.html."""
    return min(50, round(1.6 * num_values**0.56))


def network(
    input_shape: Sequence[int],
    num_outputs: int,
    preparation: Preparation | None = None,
    hidden: Sequence[int] = (64, 64),
    dropout: float = 0.1,
) -> nn.Module:
    """Return an MLP on the numbers of a table and the embeddings of its categories: (B, inputs) -> (B, num_outputs).

    `preparation` says which inputs are codes of categories, and how many values each has. Embeddings begin at zero;
    those of unknown values, which the training part lacks, stay there.

    Source: Guo and Berkhahn, Entity Embeddings of Categorical Variables, https://arxiv.org/abs/1604.06737
    """
    import torch
    from torch import nn

    from sacristan.ingredients.models.networks import MLP

    table = None if preparation is None else preparation.table
    counts = {} if table is None else table.code_counts
    numbers = [index for index in range(input_shape[0]) if index not in counts]

    class TableNetwork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tables = [nn.Embedding(count, embedding_size(count - 1)) for count in counts.values()]
            self.embeddings = nn.ModuleList(tables)
            width = len(numbers)
            for table in tables:
                nn.init.zeros_(table.weight)
                width += table.embedding_dim
            self.body = MLP((width,), num_outputs, hidden, dropout=dropout)

        def forward(self, rows: Tensor) -> Tensor:
            embedded = [table(rows[:, index].long()) for index, table in zip(counts, self.embeddings, strict=True)]
            return self.body(torch.cat([rows[:, numbers], *embedded], 1))

    return TableNetwork()


if __name__ == "__main__":
    ex.run_commandline()
