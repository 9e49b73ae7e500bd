"""A model card in Markdown, from the record of a run: data, scores, config, environment, origin.

Everything in the record is text to a card: nothing of it becomes markup, a link or HTML.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from sacristan.runs.comparison.inference import share_interval
from sacristan.runs.query import dotted, entry_at, list_of, mapping_of
from sacristan.runs.query.texts import is_number
from sacristan.runs.stores import Run

# Characters with a meaning in Markdown, GitHub's included, anywhere; and those with a meaning at the start of a line.
_ESCAPED = {char: f"\\{char}" for char in r"\`*_{}[]>#!|~@:$^"} | {"<": "&lt;", "&": "&amp;"}
_AT_START = re.compile(r"^(\d+(?=[.)])|)([-+=.)])")
# The start of an address that GitHub turns into a link.
_ADDRESS = re.compile(r"(www)\.", re.IGNORECASE)
# Unicode's categories of controls, formats, surrogates, and ends of lines and paragraphs.
_NOT_SHOWN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
# Packages that results depend on most.
_PACKAGES = ("sacristan", "torch", "torchvision", "numpy", "sacred", "scikit-learn")


def escape_markdown(text: object) -> str:
    """Escape `str(text)` so that one line or table cell of Markdown shows it; control characters become spaces."""
    line = "".join(_ESCAPED.get(char, char) for char in _one_line(str(text)).strip())
    return _ADDRESS.sub(r"\1\.", _AT_START.sub(r"\1\\\2", line))


def model_card(run: Run) -> str:
    """Return the model card of a run's model as Markdown; a section without recorded facts says so.

    Example:
        with open_store("my_runs") as store:
            print(model_card(store.get("latest")))
    """
    name = " on ".join(filter(None, (_text(run, "config.model.name"), _text(run, "config.data.name"))))
    title = escape_markdown(": ".join(filter(None, (run.name, name))) or f"run {run.id}")
    parts = [
        ("", _head(run)),
        ("Data", _data(run)),
        ("Scores", _scores(run)),
        ("Configuration", _config(run)),
        ("Environment", _environment(run)),
        ("How to reproduce", _reproduce(run)),
        ("Checkpoints", _items((name, None) for name in run.checkpoints)),
        ("License", ["<!-- the license of the weights, and of the data -->"]),
    ]
    lines = [f"# {title}"]
    for heading, content in parts:
        lines += ["", *([f"## {heading}", ""] if heading else []), *(content or ["The record has no facts on this."])]
    return "\n".join(lines) + "\n"


def _text(run: Run, name: str) -> str:
    value = run.get(name)
    return value if isinstance(value, str) else ""


def _items(entries: Iterable[tuple[object, Any]]) -> list[str]:
    """List names with their values, or alone if the value is None; empty values are omitted."""
    return [
        f"- {escape_markdown(name)}" + ("" if value is None else f": {escape_markdown(value)}")
        for name, value in entries
        if value != ""
    ]


def _head(run: Run) -> list[str]:
    status = str(run.status)
    lines = _items(
        [
            ("run", f"{run.id} ({run.uid})" if run.uid else run.id),
            ("experiment", run.name),
            ("model", _text(run, "config.model.name")),
            ("started", "" if run.start_time is None else f"{run.start_time:%Y-%m-%d %H:%M} UTC"),
            ("display name", run.display_name),
            ("tags", ", ".join(run.tags)),
            ("note", run.note),
        ]
    )
    if status != "COMPLETED":
        lines += ["", f"The run did not complete: it is {escape_markdown(status)}."]
    return lines


def _data(run: Run) -> list[str]:
    data = mapping_of(run.info.get("data"))
    counts = ", ".join(f"{part} {count}" for part, count in mapping_of(data.get("parts")).items())
    return _items(
        [
            ("name", data.get("name") or _text(run, "config.data.name")),
            ("path", _text(run, "config.data.path")),
            ("task", data.get("task") or ""),
            ("samples", counts),
            ("fingerprint (SHA-256 of the content)", data.get("fingerprint") or ""),
            ("seed of the split", "" if (seed := entry_at(data, "split.seed")) is None else str(seed)),
        ]
    )


def _scores(run: Run) -> list[str]:
    """Return the test metrics as a table; the accuracy of a classifier with its interval."""
    metrics = {name: value for name, value in mapping_of(run.info.get("test")).items() if is_number(value)}
    if not metrics:
        return ["The record has no metrics of a test part."]
    count = _num_tested(run)
    rows, has_interval = [], False
    for name, value in metrics.items():
        interval = ""
        if name == "accuracy" and count and 0 <= value <= 1:
            low, high = share_interval(value, count)
            interval, has_interval = f"{low:.4f} to {high:.4f}", True
        rows.append([escape_markdown(name), f"{value:.4f}", interval])
    head = ["test metric", "value", "95% interval"]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    if has_interval:
        lines += ["", f"The interval is Wilson's, of the accuracy as a share of {count} test samples."]
    else:
        lines += ["", "There are no intervals: the record does not say how many test samples were classified."]
    return lines


def _num_tested(run: Run) -> int | None:
    """Return the number of samples behind a classifier's test metrics, if it is recorded."""
    if run.get("info.data.task") != "classification":
        return None
    counts = (run.get("info.data.tested"), run.get("info.data.parts.test"))
    return next((count for count in counts if isinstance(count, int) and count > 0), None)


def _config(run: Run) -> list[str]:
    changed = dotted(mapping_of(run.get("meta.config_updates")))
    lines = _items((name, repr(value)) for name, value in changed.items())
    document = run.config.to_dict()
    if not document:
        return lines
    lines = ["Changed from the defaults:", "", *lines, ""] if lines else []
    return [*lines, "All settings:", "", *_fenced(yaml.safe_dump(document, sort_keys=False, width=110), "yaml")]


def _fenced(text: str, kind: str) -> list[str]:
    """Return a block of code with a fence longer than any in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{fence}{kind}", *text.rstrip("\n").split("\n"), fence]


def _environment(run: Run) -> list[str]:
    machine, packages = (mapping_of(run.provenance.get(name)) for name in ("machine", "packages"))
    names = [gpu.get("name") if isinstance(gpu, Mapping) else gpu for gpu in list_of(machine.get("gpus"))]
    return _items(
        [
            ("Python", machine.get("python") or _text(run, "host.python_version")),
            *((name, packages[name]) for name in _PACKAGES if name in packages),
            ("system", machine.get("os") or ""),
            ("CPU", machine.get("cpu") or _text(run, "host.cpu")),
            ("GPUs", ", ".join(map(str, names))),
            ("CUDA", machine.get("cuda") or ""),
        ]
    )


def _reproduce(run: Run) -> list[str]:
    git = mapping_of(run.provenance.get("git"))
    dirty = ", with changes that the record holds" if git.get("dirty") else ""
    lines = _items([("git commit", f"{git['commit']}{dirty}" if git.get("commit") else "")])
    words = run.get("command_line")
    commands = [f"sacristan reproduce {shlex.quote(run.id)}"]
    if isinstance(words, list) and words:
        commands.append(f"python {shlex.join(map(str, words))}")
    return [*lines, *([""] if lines else []), *_fenced("\n".join(map(_one_line, commands)), "console")]


def _one_line(text: str) -> str:
    """Replace characters that are not printable, such as line ends and terminal controls, by spaces."""
    return "".join(" " if unicodedata.category(char) in _NOT_SHOWN else char for char in text)
