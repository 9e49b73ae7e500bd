"""`Unfreezing`: trains parts of a model from the epoch on that `model.unfreeze` names."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from experiments.training.callbacks import Callback
from ingredients.models.freezing import Freezing

if TYPE_CHECKING:
    from experiments.training.trainer import Trainer

__all__ = ["Unfreezing"]

_log = logging.getLogger(__name__)


class Unfreezing(Callback):
    """Lets parts of a model that are frozen until an epoch be trained once it begins.

    Which those are follows from the epoch alone, so a training that is resumed needs no state of it. `fit` adds one for
    each model that has such parts.

    Args:
        freezing: What is frozen of the model.
        epochs: Epochs of the training; what is unfrozen after them is warned of.
    """

    def __init__(self, freezing: Freezing, epochs: int) -> None:
        self._freezing = freezing
        never = freezing.frozen_after(epochs)
        if never:
            _log.warning("model.unfreeze: %s stay frozen: the training has %d epochs", ", ".join(never), epochs)

    def start(self, trainer: Trainer) -> None:
        """Freeze what is frozen in the epoch to resume from."""
        self._freezing.begin_epoch(trainer.place.epoch + 1)

    def after_epoch(self, trainer: Trainer) -> None:
        """Unfreeze what the next epoch trains."""
        epoch = trainer.place.epoch + 2
        opened = self._freezing.opened_in(epoch)
        if opened:
            _log.info("from epoch %d on, %s are trained", epoch, ", ".join(opened))
        self._freezing.begin_epoch(epoch)
