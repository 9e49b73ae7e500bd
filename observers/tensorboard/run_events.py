"""`RunEvents`: the event file of one run. It is loaded when a run starts, as it needs the extra `tensorboard`."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import random
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.observers.media.pixels import png_size
from sacristan.observers.record.files import read_regular
from sacristan.observers.record.media_files import Content, MediaEntry, media_path
from sacristan.observers.record.points.intact_points import read_metrics
from sacristan.observers.record.schema import MEDIA, read_json_lines
from sacristan.observers.tensorboard import events
from sacristan.observers.tensorboard.event_file import EventFile

__all__ = ["RunEvents", "graph_of", "recorded_media"]

_log = logging.getLogger(__name__)


class RunEvents:
    """Writes the points and media of a run to an event file of this session.

    Args:
        uid: The run's uid, a part of the names of the files.
        config: The run's config, TensorBoard's hyper-parameters.
    """

    def __init__(self, folder: Path, uid: str, config: Mapping[str, Any], start: datetime) -> None:
        at = start.timestamp()
        self._folder = folder
        self._uid = uid
        # The first one is the start of the run to TensorBoard, which drops nothing.
        start_event = events.restart(events.LAST_STEP, at)
        self._head = [events.file_version(at), start_event, events.session_start(config, at)]
        self._graph: bytes | None = None
        self._kinds: dict[str, str] = {}
        self._last_step = 0
        self._file = EventFile(self._new_path(at))
        self._begin()
        self.flush()

    def _new_path(self, at: float) -> Path:
        """Return a new file that sorts after those of earlier sessions."""
        earlier = len(list(self._folder.glob("*tfevents*")))
        return self._folder / f"events.out.tfevents.{int(at)}.{self._uid}{f'.{earlier}' if earlier else ''}"

    def _begin(self) -> None:
        self._kinds, self._last_step = {}, 0
        for event in self._head:
            self._file.add(event)

    def add_scalars(self, name: str, rows: Iterable[tuple[Any, Any, float]]) -> None:
        """Add points of a metric, each with step, value, and time in seconds since 1970.

        Values that are not numbers are left out. Steps of `system/...` metrics are seconds, and do not place the
        result.
        """
        tag = self._tag(name, "scalar")
        for step, value, at in rows:
            event = events.scalar_event(tag, value, step, at)
            if event is not None:
                self._file.add(event)
                if not tag.startswith("system/"):
                    self._last_step = max(self._last_step, events.as_step(step))

    def add_result(self, result: float, at: datetime) -> None:
        """Add the result of the run as the metric `result`, at the last step of all metrics."""
        self.add_scalars("result", [(self._last_step, result, at.timestamp())])

    def add_media(self, entries: Iterable[MediaEntry]) -> None:
        """Add the media that TensorBoard can show and whose file could be made."""
        for entry in entries:
            if entry.content is not None:
                for event in events.media_events(self._tag(entry.name, entry.kind), entry, entry.content):
                    self._file.add(event)

    def _tag(self, name: str, kind: str) -> str:
        """Return the tag of a series. TensorBoard shows one kind per tag, so a second kind gets its own tag."""
        return name if self._kinds.setdefault(name, kind) == kind else f"{name}/{kind}"

    def add_graph(self, model: Any, inputs: Any) -> None:
        """Add the graph of a model; if the model cannot be traced, log a warning instead."""
        try:
            graph = graph_of(model, inputs)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            _log.warning("the graph of %s cannot be drawn: %s: %s", type(model).__name__, type(error).__name__, reason)
            return
        self._graph = events.graph_event(graph, time.time())
        self._file.add(self._graph)

    def rewrite(self, record: Path, start: datetime) -> None:
        """Replace all files by a new one with the content of the record, after a rewind."""
        self._file.close()
        earlier, path = list(self._folder.glob("*tfevents*")), self._new_path(time.time())
        temporary = self._folder / "rewinding.tmp"
        temporary.unlink(missing_ok=True)
        self._file = EventFile(temporary)
        self._begin()
        # A running TensorBoard drops all that it has read.
        self._file.add(events.restart(-events.LAST_STEP, time.time()))
        if self._graph is not None:
            self._file.add(self._graph)
        self._add_recorded(record, start.timestamp())
        self._file.close()
        temporary.rename(path)
        for file in earlier:
            os.truncate(file, 0)  # TensorBoard would not get past a missing one
        self._file = EventFile(path)

    def _add_recorded(self, record: Path, began: float) -> None:
        """Add all points and media of a record."""
        for name, series in read_metrics(record).items():
            times = (series.times + began).tolist()
            self.add_scalars(name, zip(series.steps.tolist(), series.values.tolist(), times, strict=True))
            self.flush()
        for entry in recorded_media(record, began):
            self.add_media([entry])
            self.flush()

    def follow(self, folder: Path) -> None:
        """Continue in the same file after its folder was moved."""
        self._folder = folder
        self._file.follow(folder)

    def flush(self) -> None:
        """Write the added events, and those that failed before."""
        self._file.flush()

    def end(self, at: datetime, *, completed: bool) -> bool:
        """Write the end of the run, and close the file; return whether it has all events."""
        self._file.add(events.session_end(completed, at.timestamp()))
        return self._file.close()


def recorded_media(folder: Path, start: float) -> Iterator[MediaEntry]:
    """Yield the media of a run in the order of logging.

    Raises OSError if a file is missing, and RecordError if a name leads out of the folder.
    """
    for row in read_json_lines(folder / MEDIA):
        path = media_path(folder, row["file"])
        images = tuple(_image(media_path(folder, file)) for file in row.get("images", ()))
        content = Content(read_regular(path), path.suffix, row["content_type"], row["meta"], images)
        yield MediaEntry(row["name"], row["kind"], row["step"], start + row["time"], content)


def _image(path: Path) -> Content:
    """Return the image of a table's cell."""
    data = read_regular(path)
    width, height = png_size(data)
    return Content(data, path.suffix, "image/png", {"width": width, "height": height})


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def graph_of(model: Any, inputs: Any) -> bytes:
    """Trace a model, and return its graph as a serialized GraphDef.

    A copy of the model runs forward once, in evaluation mode, without gradients or hooks. The random streams of torch,
    numpy and Python are restored.
    """
    import torch
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.versions_pb2 import VersionDef
    from torch.utils.tensorboard._pytorch_graph import parse

    # A compiled module holds the original.
    model = copy.deepcopy(getattr(model, "_orig_mod", model)).eval()
    for module in model.modules():
        for name in _HOOKS:
            getattr(module, name).clear()
    values = inputs if isinstance(inputs, tuple | list) else (inputs,)
    copies = tuple(value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values)
    devices = {value.device.index or 0 for value in copies if isinstance(value, torch.Tensor) and value.is_cuda}
    with (
        torch.random.fork_rng(devices=sorted(devices)),
        _kept_streams(),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        # torch.jit is deprecated since 2.13, but nothing else makes TensorBoard's form of a graph yet.
        warnings.simplefilter("ignore")
        trace = torch.jit.trace(model, copies, check_trace=False)
        graph = trace.graph
        torch._C._jit_pass_inline(graph)
        nodes = parse(graph, trace)
    return GraphDef(node=nodes, versions=VersionDef(producer=22)).SerializeToString()


@contextlib.contextmanager
def _kept_streams() -> Iterator[None]:
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
