"""`watch`: histograms of the gradients and parameters of a model, beside what its script logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sacristan.observers.errors import MediaError
from sacristan.observers.media.kinds import Histogram

_log = logging.getLogger(__name__)

_WHAT = ("gradients", "parameters", "all")


def watch(run: Any, models: Any, what: str, every: int, number: int | None) -> None:
    """Log histograms, `gradients/...` and `parameters/...`, with the next `log` after each `every`-th pass.

    The names are W&B's: `gradients/layer.weight`, of a further model `gradients/graph_1layer.weight`, where `number`,
    None to count them, is that of the first. `what` is `gradients`, `parameters` or `all`.
    """
    if what not in _WHAT:
        raise ValueError(f"watch: got log={what!r}, expected one of {', '.join(_WHAT)}")
    hooks: list[tuple[Any, Any]] = vars(run).setdefault("_watched", [])
    for model in models if isinstance(models, list | tuple) else (models,):
        if not hasattr(model, "named_parameters"):
            raise ValueError(f"watch: got a {type(model).__name__}, expected a torch.nn.Module")
        index = len({id(watched) for watched, _ in hooks}) if number is None else number
        prefix = f"graph_{index}" if index else ""
        if what != "parameters":
            hooks += [(model, hook) for hook in _hooks_of_gradients(run, model, prefix, max(1, every))]
        if what != "gradients":
            hooks.append((model, model.register_forward_hook(_HookOfParameters(run, prefix, max(1, every)))))


def unwatch(run: Any, models: Any) -> None:
    """Remove the hooks of `watch`; of all models if `models` is None."""
    hooks: list[tuple[Any, Any]] = vars(run).get("_watched", [])
    wanted = None if models is None else {*map(id, models if isinstance(models, list | tuple) else (models,))}
    for model, hook in hooks:
        if wanted is None or id(model) in wanted:
            hook.remove()
    hooks[:] = [(model, hook) for model, hook in hooks if wanted is not None and id(model) not in wanted]


def _hooks_of_gradients(run: Any, model: Any, prefix: str, every: int) -> list[Any]:
    def hook_of(name: str) -> Callable[[Any], None]:
        passes = 0

        def look(gradient: Any) -> None:
            nonlocal passes
            passes += 1
            if passes % every == 0:
                _log_histogram(run, f"gradients/{prefix}{name}", gradient)

        return look

    return [weight.register_hook(hook_of(name)) for name, weight in model.named_parameters() if weight.requires_grad]


class _HookOfParameters:
    """Logs the parameters of a model with every so many forward passes."""

    def __init__(self, run: Any, prefix: str, every: int) -> None:
        self._run, self._prefix, self._every, self._passes = run, prefix, every, 0

    def __call__(self, model: Any, inputs: Any, output: Any) -> None:
        self._passes += 1
        if self._passes % self._every == 0:
            for name, weight in model.named_parameters():
                _log_histogram(self._run, f"parameters/{self._prefix}{name}", weight)


def _log_histogram(run: Any, name: str, values: Any) -> None:
    try:
        run.log({name: Histogram(values)}, commit=False)
    except MediaError as error:  # such as a sparse gradient
        _log.warning("watch: %s is left out (%s)", name, error)
