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
    """Trains frozen parts of a model from an epoch on.

    The epoch alone decides which parts are frozen, so a resumed training needs no state of it. `fit` adds one for each
    model that has such parts.

    Args:
        freezing: The frozen parts of the model.
        epochs: Epochs of the training; a warning names parts that stay frozen in all of them.
    """

    def __init__(self, freezing: Freezing, epochs: int) -> None:
        self._freezing = freezing
        never = freezing.frozen_after(epochs)
        if never:
            _log.warning("model.unfreeze: %s stay frozen: the training has %d epochs", ", ".join(never), epochs)

    def start(self, trainer: Trainer) -> None:
        self._freezing.begin_epoch(trainer.place.epoch + 1)

    def after_epoch(self, trainer: Trainer) -> None:
        epoch = trainer.place.epoch + 2
        opened = self._freezing.opened_in(epoch)
        if opened:
            _log.info("from epoch %d on, %s are trained", epoch, ", ".join(opened))
        self._freezing.begin_epoch(epoch)
