"""Objects that stand in for those of W&B: media and artifacts that end no training, and names that do nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sacristan.experiments.scripts.artifact import Artifact
from sacristan.observers.errors import MediaError
from sacristan.observers.media import audio_and_video, kinds, table

# Classes that a callback of W&B's derives from, which its library requires, by the module of the callback.
_CALLBACKS = {
    "integration.sb3": "stable_baselines3.common.callbacks:BaseCallback",
    "integration.xgboost": "xgboost.callback:TrainingCallback",
    "xgboost": "xgboost.callback:TrainingCallback",
}


class _Derived:
    """The base of a class that a script derives from a name that is not here; it takes all arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class Nothing:
    """Stand in for a name of W&B that is not recorded: calling, entering, comparing or subclassing it does nothing."""

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        self._name, self._warn = name, warn

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        self._warn(self._name)
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(f"{self._name}.{name}", self._warn)

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, key: Any) -> Nothing:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __len__(self) -> int:
        return 0

    def _differs(self, other: Any) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __instancecheck__ = __subclasscheck__ = _differs

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        self._warn(self._name)
        return (_Derived,)


class _WithoutNames:
    """An object whose further names, which W&B's has, do nothing."""

    _unknown: Callable[[str], None]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Nothing(f"{type(self).__name__}.{name}", self._unknown)


class _Lenient(_WithoutNames):
    """A medium that is left out, with a warning, where the lab cannot show it."""

    is_left_out = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*self._adapted(*args), **kwargs)
        except Exception as error:  # also of its data, such as a tensor without values
            self.is_left_out = True
            self._unknown(str(error) if isinstance(error, MediaError) else f"{type(self).__name__} ({error})")

    @staticmethod
    def _adapted(*args: Any) -> tuple[Any, ...]:
        return args


class _Image(_Lenient, kinds.Image):
    def __init__(self, data_or_path: Any, mode: str | None = None, caption: str | None = None, **options: Any) -> None:
        super().__init__(data_or_path, caption, mode, **options)

    @staticmethod
    def _adapted(*args: Any) -> tuple[Any, ...]:
        data, *others = args
        if hasattr(data, "dtype") and hasattr(data, "shape"):
            pixels = np.asarray(data.detach().cpu() if hasattr(data, "detach") else data)
            if hasattr(data, "detach") and pixels.ndim == 3:
                pixels = np.moveaxis(pixels, 0, -1)
            # W&B casts all numbers to bytes, and drops axes of length 1.
            data = (pixels.squeeze() if pixels.ndim > 2 else pixels).astype(np.uint8)
        return (data, *others)


class _Table(_Lenient, table.Table):
    def _cell(self, cell: Any, number: int, place: int) -> Any:
        try:
            return None if getattr(cell, "is_left_out", False) else super()._cell(cell, number, place)
        except MediaError:
            return str(cell)

    def add_data(self, *row: Any) -> None:
        if not self.is_left_out:
            super().add_data(*row)

    add_row = add_data

    def add_column(self, name: str, data: Any, optional: bool = False) -> None:
        if not self.is_left_out:
            super().add_column(name, data)

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the rows with their numbers."""
        return enumerate(self.data)


class _Histogram(_Lenient, kinds.Histogram):
    pass


class _Audio(_Lenient, audio_and_video.Audio):
    pass


class _Video(_Lenient, audio_and_video.Video):
    pass


class _Html(_Lenient, kinds.Html):
    pass


class LenientArtifact(_WithoutNames, Artifact):
    """An artifact that lacks what cannot be added, with a warning."""

    def add(self, obj: Any, name: str, **options: Any) -> None:
        if not isinstance(obj, kinds.Media):
            self._unknown(f"Artifact.add of {getattr(obj, '_name', type(obj).__name__)}")
        elif not getattr(obj, "is_left_out", False):
            super().add(obj, name, **options)


# The classes that scripts make media of.
MEDIA: Mapping[str, type] = {
    "Image": _Image, "Table": _Table, "Histogram": _Histogram, "Audio": _Audio, "Video": _Video, "Html": _Html,
}  # fmt: skip


def callback_class(home: str, warn: Callable[[str], None]) -> type | None:
    """Return a class of callbacks that do nothing, of the kind that a library takes; None if any object does."""
    if home not in _CALLBACKS:
        return None
    module, _, name = _CALLBACKS[home].partition(":")
    base = getattr(importlib.import_module(module), name)

    def make(self: Any, *args: Any, **options: Any) -> None:
        base.__init__(self)
        warn(f"{home}.WandbCallback")

    return type("WandbCallback", (base,), {"__init__": make, "_on_step": lambda self: True})
