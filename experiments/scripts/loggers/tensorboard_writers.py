"""Event files: `SummaryWriter` of `torch.utils.tensorboard` and of `tensorboardX`, which write their files as ever.

Metrics have the names that `sacristan import` gives those of the same files.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sacred.utils import SacredInterrupt

from sacristan.experiments.scripts.capturing import NUMBERS, Capture, not_recorded, watched
from sacristan.experiments.scripts.loggers.open_runs import Part
from sacristan.observers.errors import MetricError
from sacristan.observers.media.kinds import Figure, Histogram, Image, Media, Text
from sacristan.observers.record.other_trackers import part_name

LACKS = ("other calls, such as add_audio, add_embedding, add_graph, add_mesh, add_pr_curve, add_video", "walltime")
_NAME = "tensorboard"
_ADD_SCALAR = _NAME, "add_scalar"
# Folders that say what their points are of, whether or not another writer has the same tags.
_SPLITS = ("train", "training", "val", "valid", "validation", "eval", "test")
# What makes the media of each call, from its arguments by name.
_MEDIA: dict[str, Callable[[Mapping[str, Any]], list[Callable[[], Media]]]] = {
    "add_image": lambda given: [functools.partial(_image, given["img_tensor"], given["dataformats"])],
    "add_images": lambda given: [functools.partial(_grid, given["img_tensor"], given["dataformats"])],
    "add_figure": lambda given: [functools.partial(Figure, each) for each in _listed(given["figure"])],
    "add_histogram": lambda given: [functools.partial(Histogram, given["values"])],
    "add_text": lambda given: [functools.partial(Text, str(given["text_string"]))],
}


def attach(module: Any, capture: Capture) -> None:
    """Watch the writers of the module."""
    writer = module.SummaryWriter
    is_of_torch = module.__name__.startswith("torch")
    records = _Calls(capture, is_of_torch=is_of_torch)
    writer.add_hparams = records.within_hparams(writer.add_hparams)
    writer.add_scalar = records.add_scalar(writer.add_scalar)
    _watch(writer, "add_scalars", records.add_scalars)
    _watch(writer, "add_hparams", _with_names(writer.add_hparams, records.add_hparams))
    for call in _MEDIA:
        _watch(writer, call, _with_names(getattr(writer, call), functools.partial(records.add_medium, call)))
    for call in [name for name in vars(writer) if name.startswith("add_")]:
        if not hasattr(_Calls, call) and call not in _MEDIA:
            _watch(writer, call, functools.partial(_ignore, capture, call))


def _watch(writer: type, call: str, note: Callable[..., None]) -> None:
    if call in vars(writer):
        setattr(writer, call, watched(getattr(writer, call), note))


def _with_names(method: Callable[..., Any], note: Callable[[Mapping[str, Any]], None]) -> Callable[..., None]:
    """Return a function that calls `note` with the arguments of a method by name, defaults included."""
    signature = inspect.signature(method)

    def call(_: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        note(bound.arguments)

    return call


def _ignore(capture: Capture, call: str, *_: Any, **__: Any) -> None:
    capture.unknown(_NAME, call)


class _Trial(NamedTuple):
    """Hyperparameters of a writer: the part of the record that they are, and the names of their metrics in it."""

    part: Part
    names: dict[str, str]

    def name(self, name: str, curves: Container[str]) -> str:
        """Return the name of a metric of `add_hparams`, which may repeat that of a curve."""
        if name not in self.names:
            own = self.part.of(name)
            self.names[name] = self.part.of(f"hparams/{name}") if own in curves else own
        return self.names[name]


class _Calls:
    """The calls of writers, with their results and signatures: what each tells the run."""

    def __init__(self, capture: Capture, *, is_of_torch: bool) -> None:
        self._capture = capture
        self._is_of_torch = is_of_torch
        self._in_hparams = False
        self._begin_run()

    def _begin_run(self) -> None:
        self._run = self._capture.run
        # The folder of the first writer, and what the tags of each other one begin with.
        self._first: str | None = None
        self._prefixes: dict[str, str] = {}
        # By folder and hyperparameters.
        self._trials: dict[tuple[str, str], _Trial] = {}

    def within_hparams(self, add_hparams: Callable[..., None]) -> Callable[..., None]:
        """Return the method such that the writer which it makes for the metrics is not watched."""

        @functools.wraps(add_hparams)
        def call(*args: Any, **kwargs: Any) -> None:
            self._in_hparams = True
            try:
                add_hparams(*args, **kwargs)
            finally:
                self._in_hparams = False

        return call

    def _new_prefix(self, folder: str) -> str:
        """Return what the tags of a writer begin with: nothing for the first one, else the name of its folder."""
        name = Path(folder).name
        if self._first is None:
            self._first = folder
        is_needed = folder != self._first or name.lower() in _SPLITS
        self._prefixes[folder] = f"{name}/" if is_needed else ""
        return self._prefixes[folder]

    def _prefix(self, writer: Any) -> str:
        if self._run is not self._capture.run:
            self._begin_run()
        folder = _folder(writer)
        prefix = self._prefixes.get(folder)
        return self._new_prefix(folder) if prefix is None else prefix

    def _name(self, writer: Any, tag: str) -> str:
        prefix = self._prefix(writer)
        return tag if tag.startswith(prefix) else prefix + tag

    def add_scalar(self, add_scalar: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method such that the run has the value, too: `watched`, written out for the most frequent call."""
        capture = self._capture

        @functools.wraps(add_scalar)
        def call(writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **more: Any) -> Any:
            if args or more:
                result = add_scalar(writer, tag, scalar_value, global_step, *args, **more)
            else:  # a call without unpacking takes half a microsecond less
                result = add_scalar(writer, tag, scalar_value, global_step)
            if self._in_hparams:
                return result
            try:
                prefix = self._prefixes.get(getattr(writer, "log_dir", ""))
                if prefix is None or self._run is not capture.run:
                    prefix = self._prefix(writer)
                name = tag if not prefix or tag.startswith(prefix) else prefix + tag
                step = global_step if type(global_step) is int else _step(global_step)
                quick = capture.quick.get(_ADD_SCALAR)
                if quick is None:
                    capture.log_scalar(name, scalar_value, step, _ADD_SCALAR)
                else:
                    points, log = quick
                    if isinstance(scalar_value, NUMBERS):
                        points[name] = step, scalar_value
                    log(name, scalar_value, step)
            except SacredInterrupt:
                raise
            except MetricError as error:
                capture.reject(name, error, _ADD_SCALAR)
            except Exception as error:
                not_recorded(add_scalar, error)
            return result

        return call

    def add_scalars(
        self,
        _: Any,
        writer: Any,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        *__: Any,
        **___: Any,
    ) -> None:
        # As the folders are called that it writes to, one for each scalar, and the tag in them.
        folder = self._name(writer, f"{main_tag.replace('/', '_')}_" if self._is_of_torch else f"{main_tag}/")
        values = {f"{folder}{name}/{main_tag}": value for name, value in tag_scalar_dict.items()}
        self._capture.log(values, _step(global_step), library=_NAME, call="add_scalars")

    def add_hparams(self, given: Mapping[str, Any]) -> None:
        settings, run = given["hparam_dict"], self._capture.run
        if run is None:
            return
        trial = self._trial(_folder(given["self"]), settings, given.get("run_name") or given.get("name") or "")
        self._capture.config(trial.part.nested(settings), library=_NAME, call="add_hparams")
        values = {trial.name(name, run.position()["metrics"]): value for name, value in given["metric_dict"].items()}
        self._capture.log(values, _step(given.get("global_step")), library=_NAME, call="add_hparams")

    def _trial(self, folder: str, settings: Mapping[str, Any], name: str) -> _Trial:
        """Return the trial of hyperparameters: the first is the run itself, each further one a part of its record."""
        if self._run is not self._capture.run:
            self._begin_run()
        key = folder, repr(sorted(settings.items(), key=str))
        if key not in self._trials:
            others = {trial.part.name for trial in self._trials.values()}
            is_of_writer = any(folder == other for other, _ in self._trials)
            named = name.strip("./") or ("" if is_of_writer else Path(folder).name)
            self._trials[key] = _Trial(Part(0, part_name(named, "", others) if others else ""), {})
        return self._trials[key]

    def add_medium(self, call: str, given: Mapping[str, Any]) -> None:
        for make in _MEDIA[call](given):
            name, step = self._name(given["self"], given["tag"]), _step(given["global_step"])
            self._capture.media(name, make, step, library=_NAME, call=call)


def _folder(writer: Any) -> str:
    return str(getattr(writer, "log_dir", None) or getattr(writer, "logdir", ""))


def _step(step: Any) -> Any:
    """Return a step as a whole number, as the files have it; None counts, where they have 0 each time."""
    return None if step is None else int(step)


def _image(values: Any, dataformats: str) -> Image:
    """Return an image from one whose axes are in the given order."""
    return Image(_channels_last(_as_array(values), dataformats.upper()))


def _grid(values: Any, dataformats: str) -> Image:
    """Return the images of a batch beside each other, as one."""
    import numpy as np

    axes = dataformats.upper()
    each_formats = axes.replace("N", "")
    images = [_channels_last(each, each_formats) for each in np.moveaxis(_as_array(values), axes.index("N"), 0)]
    return Image(np.concatenate(images, axis=1))


def _as_array(values: Any) -> Any:
    import numpy as np

    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _channels_last(values: Any, dataformats: str) -> Any:
    import numpy as np

    order = [dataformats.index(axis) for axis in "HWC" if axis in dataformats]
    found = np.transpose(values, order)
    return np.clip(found, 0.0, 1.0) if found.dtype.kind == "f" else found.astype(np.uint8)


def _listed(figures: Any) -> list[Any]:
    return [*figures] if isinstance(figures, list | tuple) else [figures]
