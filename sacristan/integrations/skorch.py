"""`SacristanLogger`, a callback for nets of skorch.

from sacristan.integrations.skorch import SacristanLogger

net = NeuralNetClassifier(Net, max_epochs=3, callbacks=[SacristanLogger(name="digits")])
net.fit(X, y)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skorch.callbacks import Callback

from sacristan.experiments.running import LabRun
from sacristan.experiments.scripts.tracked_run import TrackedRun
from sacristan.integrations.runs import LoggedRun

__all__ = ["SacristanLogger"]

_BEST = "_best"


class SacristanLogger(Callback):
    """Logs the history of a net into a run, an epoch at its number; parameters of the net become settings.

    Args:
        run: What `sacristan.init` has returned, or `_run` of an experiment; None for the current run, or a new one.
        keys_ignored: Entries of the history to leave out, beside those of single batches.
        close_after_train: Whether to end the run after `fit`.
        **options: Arguments of `sacristan.init` for a new one.
    """

    def __init__(
        self,
        run: TrackedRun | LabRun | None = None,
        keys_ignored: str | Sequence[str] | None = None,
        close_after_train: bool = False,
        **options: Any,
    ) -> None:
        self.run, self.keys_ignored, self.close_after_train = run, keys_ignored, close_after_train
        self._options = tuple(options)
        self.__dict__.update(options)  # an attribute for each argument, by which scikit-learn clones a callback

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "run": None}  # a copy logs into the current run

    def initialize(self) -> SacristanLogger:
        """Prepare for `fit`, as each callback of skorch does."""
        ignored = [self.keys_ignored] if isinstance(self.keys_ignored, str) else self.keys_ignored or ()
        self.keys_ignored_ = {*ignored, "batches"}
        self.logged_ = LoggedRun(self.run, {name: getattr(self, name) for name in self._options})
        return self

    def on_train_begin(self, net: Any, *args: Any, **kwargs: Any) -> None:
        plain = {
            name: value
            for name, value in net.get_params(deep=False).items()
            if isinstance(value, bool | int | float | str | type)
        }
        self.logged_.update_config(plain)

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        row = net.history[-1]
        values = {
            name: value
            for name, value in row.items()
            if name not in self.keys_ignored_ and not name.endswith(_BEST) and hasattr(type(value), "__float__")
        }
        self.logged_.log(values, int(row["epoch"]))

    def on_train_end(self, net: Any, **kwargs: Any) -> None:
        if self.close_after_train:
            self.logged_.finish()
