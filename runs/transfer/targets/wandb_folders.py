"""Runs as W&B's offline folders, which `wandb sync` uploads: `offline-run-TIME-UID/run-UID.wandb`.

W&B numbers the rows of a run itself. Each row here has points of one time and one step; the step is the metric
`sacristan/step`, which is defined as the x axis of all others. The uid is W&B's id of the run.
"""

from __future__ import annotations

import codecs
import heapq
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sacristan.observers.record.files import relative_path
from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.runs.errors import StoreError
from sacristan.runs.query import entry_at
from sacristan.runs.stores import Run
from sacristan.runs.transfer.targets import RunFolders, media_of, start_of
from sacristan.runs.transfer.trackers.wandb_files import LogWriter

LACKS = (
    "W&B numbers rows itself; the steps of the run are the metric sacristan/step, the x axis of all others",
    "W&B drops empty mappings in the config, and the times of lines of output",
    "W&B stores no checkpoints, and of the provenance only the commit, the diff, the packages and the machine's name",
    "W&B has no texts and no PLY point clouds among its media; they are files of the run",
)
NEEDS = ("wandb", "google.protobuf")
_STEP = "sacristan/step"
# Limits of W&B: characters of a project, of a display name and of a tag.
_PROJECT, _TITLE, _TAG = 128, 128, 64
# W&B's type and folder for each kind; others are files.
_TYPES = {
    "image": ("image-file", "images"),
    "figure": ("image-file", "images"),
    "audio": ("audio-file", "audio"),
    "html": ("html-file", "html"),
    "table": ("table-file", "table"),
}
_OUTPUT_BYTES = 2**18


def open_target(output: str) -> RunFolders:
    """Open a folder, which is created when the first run is written; reject an address or a file."""
    return RunFolders(output, "runs of W&B; it uploads them with: wandb sync FOLDER", _write, _name_of)


def _name_of(run: Run, key: str) -> str:
    return f"offline-run-{run.start_time or 0:%Y%m%d_%H%M%S}-{key}" if run.start_time else f"offline-run-{key}"


def _write(run: Run, key: str, folder: Path) -> tuple[int, list[str]]:
    with (folder / f"run-{key}.wandb").open("wb") as stream:
        return _RunWriter(run, key, folder / "files", LogWriter(stream)).write()


class _RunWriter:
    """Writes one run, whose id in W&B is `key`."""

    def __init__(self, run: Run, key: str, files: Path, log: LogWriter) -> None:
        from wandb.proto import wandb_internal_pb2

        self._messages: Any = wandb_internal_pb2
        self._run, self._key, self._files, self._log = run, key, files, log
        self._start = start_of(run)
        self._num_records = 0
        self._summary: dict[str, Any] = {}
        self._left_out: list[str] = []

    def write(self) -> tuple[int, list[str]]:
        """Write everything; return the number of points and what was left out."""
        version = self._messages.VersionInfo(producer="sacristan", min_consumer="0.70.0")
        self._add(header=self._messages.HeaderRecord(version_info=version))
        self._add_run()
        self._add_environment()
        self._add_axis()
        self._add_output()
        num_points = self._add_history()
        self._add_files()
        self._add_end()
        if self._run.odd_values():
            self._left_out.append("logged values that are no numbers")
        return num_points, self._left_out

    def _add(self, **content: Any) -> None:
        self._num_records += 1
        record = self._messages.Record(num=self._num_records, **content)
        if "header" not in content:
            record._info.stream_id = self._key
        self._log.add(record.SerializeToString())

    def _add_run(self) -> None:
        run, messages = self._run, self._messages
        config = messages.ConfigRecord()
        for name, value in {"_wandb": {}, **run.config}.items():
            config.update.add(key=name, value_json=json.dumps(value))
        tags = [tag for tag in run.tags if len(tag) <= _TAG]
        self._left_out += [f"tag {tag!r}: more than {_TAG} characters" for tag in run.tags if len(tag) > _TAG]
        record = messages.RunRecord(
            run_id=self._key,
            project=re.sub(r"[/\\#?%:]", "_", run.name)[:_PROJECT] or "sacristan",
            config=config,
            display_name=(run.display_name or run.id)[:_TITLE],
            notes=run.note,
            tags=tags,
            host=run.host,
        )
        self._stamp(record.start_time, self._start)
        self._add(run=record)

    def _add_environment(self) -> None:
        run, machine = self._run, self._run.provenance.get("machine") or {}
        git = run.provenance.get("git") or {}
        words = [str(word) for word in run["command_line"] or [run.command]]
        record = self._messages.EnvironmentRecord(
            os=str(machine.get("os") or ""),
            python=str(machine.get("python") or ""),
            host=run.host,
            username=str(run["host.user"] or ""),
            program=words[0],
            args=words[1:],
            git=self._messages.GitRepoRecord(remote_url=git.get("url") or "", commit=git.get("commit") or ""),
        )
        self._stamp(record.started_at, self._start)
        self._add(environment=record)

    def _add_axis(self) -> None:
        """Define the step of the run as the x axis of all metrics."""
        options = self._messages.MetricOptions
        self._add(metric=self._messages.MetricRecord(name=_STEP, options=options(hidden=True, defined=True)))
        self._add(
            metric=self._messages.MetricRecord(
                glob_name="*", step_metric=_STEP, options=options(step_sync=True, defined=True)
            )
        )

    def _add_output(self) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        start = 0
        while True:
            piece, start = self._run.read_output(start, _OUTPUT_BYTES)
            for line in decode(piece, not piece).splitlines(keepends=True):
                record = self._messages.OutputRawRecord(output_type=self._messages.OutputRawRecord.STDOUT, line=line)
                self._stamp(record.timestamp, self._start)
                self._add(output_raw=record)
            if not piece:
                return

    # ------------------------------------------------------------------ history

    def _add_history(self) -> int:
        """Add all points and media, by time; return the number of points."""
        names = self._run.metrics
        streams = [self._points(name, self._named(name)) for name in names]
        media = sorted(self._media(), key=lambda row: row[0])
        row: dict[str, Any] = {}
        at: tuple[float, Any] = (0.0, 0)
        number = 0
        for time, step, name, value in heapq.merge(*streams, media, key=lambda point: point[0]):
            if row and ((time, step) != at or name in row):
                self._add_row(number, at, row)
                number, row = number + 1, {}
            at, row[name] = (time, step), value
        if row:
            self._add_row(number, at, row)
        return sum(len(self._run.metric(name)) for name in names)

    def _named(self, name: str) -> str:
        """Return the name that W&B accepts instead of a metric's name."""
        called = name.lstrip("_") or "metric"
        if name.startswith("_") or name == _STEP:
            while called in self._run.metrics or called == _STEP:
                called += "_"
            self._left_out.append(f"the name of the metric {name!r}, which is {called!r} in W&B")
        return called

    def _points(self, name: str, called: str) -> Iterator[tuple[float, Any, str, float]]:
        series = self._run.metric(name)
        order = series.times.argsort(kind="stable")
        if len(series):
            self._summary[called] = series.values[-1].item()
        columns = (series.times[order], series.steps[order], series.values[order])
        for time, step, value in zip(*(column.tolist() for column in columns), strict=True):
            yield time, step, called, value

    def _add_row(self, number: int, at: tuple[float, Any], values: dict[str, Any]) -> None:
        time, step = at
        record = self._messages.HistoryRecord(step=self._messages.HistoryStep(num=number))
        for name, value in values.items():
            self._add_items(record.item, [name], value)
        own = {_STEP: step, "_step": number, "_runtime": time, "_timestamp": self._start + time}
        for name, value in own.items():
            self._add_items(record.item, [name], value)
        self._summary |= own
        self._add(history=record)

    def _add_items(self, items: Any, names: list[str], value: Any) -> None:
        """Add a value; that of a medium entry by entry, as W&B does."""
        if isinstance(value, dict):
            for name, entry in value.items():
                self._add_items(items, [*names, name], entry)
        else:
            items.add(nested_key=names, value_json=json.dumps(value))

    # ------------------------------------------------------------------ media

    def _media(self) -> Iterator[tuple[float, Any, str, dict[str, Any]]]:
        for entry in media_of(self._run, self._left_out):
            content = entry.content
            assert content is not None  # `media_of` reads it
            value = self._medium(entry, content)
            if value is not None:
                yield entry.time - self._start, entry.step, entry.name.lstrip("_") or "medium", value

    def _medium(self, entry: MediaEntry, content: Content) -> dict[str, Any] | None:
        """Return how W&B describes a medium; None if it has no such kind, and the medium is a file."""
        if entry.kind == "histogram":
            bins = json.loads(content.data)
            if any(bins[name] for name in ("nan", "inf", "-inf")):
                self._left_out.append(f"histogram {entry.name!r} of step {entry.step}: its counts of NaN and infinity")
            return {"_type": "histogram", "bins": bins["edges"], "values": bins["counts"]}
        kind, folder = _TYPES.get(entry.kind, ("file", "files"))
        if entry.kind == "video":
            kind, folder = ("image-file", "images") if content.suffix == ".png" else ("video-file", "videos")
        about: dict[str, Any] = {}
        suffix = content.suffix
        if kind == "table-file":
            content, about = self._table(content)
            suffix = ".table.json"
        elif kind == "image-file":
            about = {name: content.meta[name] for name in ("width", "height") if name in content.meta}
            about["format"] = suffix[1:]
        path = self._save_medium(entry.name, entry.step, folder, content, suffix)
        if kind == "file":
            self._left_out.append(f"{entry.name!r} of step {entry.step}: a {entry.kind}, which is the file {path}")
            return None
        caption = {"caption": content.meta["caption"]} if content.meta.get("caption") else {}
        return {"_type": kind, "path": path, "sha256": content.sha256, "size": len(content.data), **about, **caption}

    def _table(self, content: Content) -> tuple[Content, dict[str, Any]]:
        table = json.loads(content.data)
        images = {image.file: image for image in content.images}
        rows = [[self._cell(cell, images) for cell in row] for row in table["rows"]]
        data = json.dumps({"columns": table["columns"], "data": rows}).encode()
        return Content(data, ".json", "application/json", content.meta), {
            "ncols": len(table["columns"]),
            "nrows": len(rows),
        }

    def _cell(self, cell: Any, images: dict[str, Content]) -> Any:
        if not isinstance(cell, dict):
            return cell
        if "$number" in cell:
            return cell["$number"]  # a text, as JSON has no NaN
        image = images[cell["$image"].rpartition("/")[2]]
        path = self._save_medium("cell", 0, "images", image, image.suffix)
        about = {"_type": "image-file", "path": path, "sha256": image.sha256, "size": len(image.data), "format": "png"}
        return about | {name: image.meta[name] for name in ("width", "height")}

    def _save_medium(self, name: str, step: Any, folder: str, content: Content, suffix: str) -> str:
        stem = re.sub(r"[^\w.-]+", "_", name)[:100]
        path = f"media/{folder}/{stem}_{step}_{content.sha256[:20]}{suffix}"
        self._save(path, content.data, self._messages.FilesItem.MEDIA)
        return path

    # ------------------------------------------------------------------ files

    def _add_files(self) -> None:
        """Add artifacts, sources, the outputs of other ranks, the diff and the list of packages."""
        run, other = self._run, self._messages.FilesItem.OTHER
        for folder, kind in (("artifacts", "artifacts"), ("code", "sources")):
            for content in run.stored(kind):
                self._save_content(f"{folder}/{content.name}", content)
        for rank, content in run.rank_outputs.items():
            self._save_content(f"ranks/{rank}.txt", content)
        packages = entry_at(run.provenance, "packages") or {}
        listed = "".join(f"{name}=={version}\n" for name, version in packages.items())
        for name, text in (("diff.patch", run.diff), ("requirements.txt", listed)):
            if text:
                self._save(name, text.encode(errors="surrogateescape"), other)

    def _save_content(self, name: str, content: Any) -> None:
        path = relative_path(name)
        if path is None:
            self._left_out.append(f"{name!r}, which is no path below a folder")
            return
        target = self._files / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            content.save(target)
        except StoreError as error:
            self._left_out.append(f"{name}: {error}")
            return
        self._list(path.as_posix(), self._messages.FilesItem.OTHER)

    def _save(self, name: str, data: bytes, kind: int) -> None:
        path = self._files / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            self._list(name, kind)

    def _list(self, name: str, kind: int) -> None:
        self._add(files=self._messages.FilesRecord(files=[self._messages.FilesItem(path=name, type=kind)]))

    def _add_end(self) -> None:
        run = self._run
        summary = self._messages.SummaryRecord()
        own = {"result": run.result} if run.result is not None and "result" not in self._summary else {}
        own["sacristan"] = {"id": run.id, "status": run.status, "result": run.result}
        for name, value in {**self._summary, **own}.items():
            self._add_items(summary.update, [name], value)
        self._add(summary=summary)
        if run.status not in ("RUNNING", "QUEUED"):
            code = 0 if run.status.startswith("COMPLETED") else 1
            self._add(exit=self._messages.RunExitRecord(exit_code=code, runtime=round(run.duration_s or 0)))

    @staticmethod
    def _stamp(target: Any, at: float) -> None:
        target.FromNanoseconds(round(at * 1e9))
