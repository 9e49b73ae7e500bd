"""Thirty runs that somebody crafted to harm whoever looks at them, as folders."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

MARK = "window.hacked=1"
SCRIPT = f'<script>{MARK}</script>"\'><img src=x onerror="{MARK}"></title></pre></textarea><svg onload="{MARK}">'
LINK = f"javascript:{MARK}"
DEEP = "[" * 50_000 + "]" * 50_000
SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload='{MARK}'><script>parent.{MARK};top.{MARK}</script></svg>"
HTML = (
    f"<h1>shown</h1><script>{MARK};parent.{MARK};top.location='/runs'</script><img src='http://evil.example/x'>"
    f"<meta http-equiv=refresh content='0;url=/runs?refreshed'><body onload='{MARK}'><base href='http://evil.example/'>"
    f"<iframe srcdoc='<script>{MARK};top.{MARK}</script>'></iframe><object data='/runs?embedded'></object>"
    f"<a href='javascript:{MARK}' autofocus onfocus='{MARK}'>x</a><link rel=stylesheet href='//evil.example/x.css'>"
)


def points(said: int, *values: float) -> bytes:
    """Return a point cloud whose head says that it has so many points."""
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {said}\n"
    axes = "".join(f"property float {axis}\n" for axis in "xyz")
    return f"{head}{axes}end_header\n".encode() + struct.pack(f"<{len(values)}f", *values)


# Kind, MIME type and content of media that are not what they say.
ODD_MEDIA = [
    ("audio", "audio/wav", b"RIFF\xff\xff\xff\xffWAVEfmt \xff\xff\xff\xff" + bytes(99)),
    ("audio", "text/html", HTML),
    ("video", "video/mp4", b"\0\0\0\x18ftypisom" + b"\xff" * 99),
    ("video", "image/png", b"\x89PNG\r\n\x1a\n" + b"\xff" * 99),
    ("video", "image/svg+xml", SVG),
    ("point_cloud", "text/html", HTML),
    ("point_cloud", "model/ply", points(999_999_999_999)),
    ("point_cloud", "model/ply", points(10**9, 1, 2, 3)),
    ("point_cloud", "model/ply", points(4, 3e38, -3e38, 1, 1, float("nan"), 1, 1, 1, float("inf"), 9e29, -9e29, 0)),
    ("html", "text/html", HTML),
    ("html", "text/javascript", MARK),
    ("hologram", "application/x-hologram", os.urandom(99)),
]


def document(**fields: Any) -> dict[str, Any]:
    """Return a run.json that is as it should be but for the fields."""
    start = {"start_time": "2026-01-01T00:00:00", "stop_time": "2026-01-01T00:01:00", "heartbeat": None}
    whole = {"experiment": {"name": "x", "sources": []}, "command": "main", "status": "COMPLETED", "host": {}, **start}
    return {**whole, "meta": {}, "artifacts": [], "resources": [], "result": 1.0, **fields}


def with_script_everywhere() -> dict[str, Any]:
    """Return files of a run that has script in every field that is shown."""
    text = SCRIPT
    run = document(
        experiment={"name": text, "sources": [[text, "_sources/x.py"], ["code.py", "_sources/code.py"]]},
        command=text,
        status=text,
        host={"hostname": text, "os": [text], text: text},
        result={text: text},
        uid="0" * 31 + "1",
        parent=text,
        command_line=[text, LINK],
        fail_trace=[text, LINK],
        artifacts=[text, LINK, "page.html", "drawing.svg", "table.csv", "notes.txt"],
        resources=[[text, "_resources/x"]],
        sessions=[{"start_time": text, "status": text, "step": text, "host": text}] * 2,
        reproductions=[{"by": text, "verdict": text, "mode": text, "time": text, "reason": text, "of_id": LINK}],
        artifacts_logged=[{"name": text, "version": version, "digest": text} for version in (text, 1)],
        artifacts_used=[{"name": name, "version": 2, "digest": text} for name in (text, LINK, "../../x", "")],
        meta={
            "comment": text,
            "interrupted_by": text,
            "config_updates": {text: text},
            "sweep": {"id": text, "trial": text, "parameters": {text: text}},
        },
    )
    statistics = {"last": text, "min": LINK, "count": 1}
    media = [
        {"name": text, "kind": text, "step": text, "time": 0, "content_type": "text/html", "meta": {"caption": text}},
        {"name": "page", "kind": "html", "step": 0, "time": 0, "content_type": "text/html", "meta": {}},
        {
            "name": "svg",
            "kind": "image",
            "step": 0,
            "time": 0,
            "content_type": "image/svg+xml",
            "meta": {"caption": text},
        },
        {"name": "odd", "kind": "image", "step": 0, "time": 0, "content_type": f"text/html; {text}", "meta": None},
        {"name": "cases", "kind": "table", "step": 0, "time": 0, "content_type": "application/json", "meta": {}},
        {"name": "weights", "kind": "histogram", "step": 0, "time": 0, "content_type": "application/json", "meta": {}},
        {"name": "words", "kind": "text", "step": 0, "time": 0, "content_type": "text/plain", "meta": {}},
        *(
            {
                "name": f"{place}{text}",
                "kind": kind,
                "step": 0,
                "time": 0,
                "content_type": mime,
                "meta": {"caption": text},
            }
            for place, (kind, mime, _) in enumerate(ODD_MEDIA)
        ),
    ]
    contents = [
        HTML,
        HTML,
        SVG,
        HTML,
        json.dumps({"columns": [text], "rows": [[text]]}),
        json.dumps({"edges": [text]}),
        text,
        *(content for _, _, content in ODD_MEDIA),
    ]
    for number, entry in enumerate(media):
        entry["file"] = f"media/{number:064x}.bin"
    packages = {text: text, "torch": LINK}
    return {
        "run.json": run,
        "config.json": {text: text, "nested": {text: {"a": LINK}}, "lr": 0.1},
        "info.json": {
            text: {text: text},
            "alerts": [{"time": text, "level": text, "text": text}, {"time": LINK, "level": "error", "text": LINK}],
            "alert_level": text,
        },
        "summary.json": {text: statistics, "loss": {"last": 1.0}},
        "notes.json": {
            "tags": {text: True, LINK: True},
            "note": text,
            "display_name": text,
            "changes": [{"time": text, "by": text, "via": text, "what": text}],
        },
        "provenance.json": {
            "git": {"commit": text, "branch": text, "dirty": True, "diff": f"+{text}\n-{LINK}"},
            "packages": packages,
        },
        "cout.txt": f"{text}\x1b[31m{text}\x1b]0;{text}\x07\n{text}\r{text}",
        "metrics.names.jsonl": json.dumps({"id": 0, "name": text}) + "\n",
        "metrics.bin": bytes(24),
        "media.jsonl": "".join(json.dumps(entry) + "\n" for entry in media),
        **{f"media/{number:064x}.bin": content for number, content in enumerate(contents)},
        "page.html": HTML,
        "drawing.svg": SVG,
        "table.csv": f'"{text.replace(chr(34), chr(34) * 2)}",b\n<b>,2\n',
        "notes.txt": text,
    }


def broken_runs() -> list[dict[str, Any]]:
    """Return files of runs that are broken, huge or lead elsewhere."""
    entry = {"name": "a", "kind": "image", "step": 0, "time": 0, "content_type": "image/png", "meta": {}}
    return [
        {"run.json": "{"},
        {"run.json": "[]"},
        {"run.json": ""},
        {"run.json": DEEP},
        {"run.json": document(), "config.json": DEEP, "summary.json": DEEP, "info.json": DEEP, "provenance.json": DEEP},
        {
            "run.json": document(),
            "config.json": "[1, 2]",
            "summary.json": "7",
            "info.json": '"x"',
            "notes.json": "null",
        },
        {"run.json": document(), "config.json": {f"entry{number}": number for number in range(30_000)}},
        {"run.json": document(), "config.json": {"long": "x" * 3_000_000, "k" * 100_000: 1}},
        {"run.json": document(result=None), "config.json": '{"huge": ' + "9" * 100_000 + "}"},
        {
            "run.json": document(result=float("nan")),
            "summary.json": '{"loss": {"last": NaN, "min": -Infinity, "max": 1e999, "count": 1e999}}',
        },
        {"run.json": document(start_time=[1], stop_time={"a": 1}, heartbeat="never", queue_time=7)},
        {"run.json": document(status={"a": 1}, command=[1], host="x", experiment="y", meta=[3], uid=7)},
        {"run.json": document(status=None, fail_trace="x", sessions=[1, None], reproductions={"a": 1}, parent=7)},
        {"run.json": document(artifacts={"a": 1}, resources=[["a"], [1, 2], None], tags=["x"], note={"a": 1})},
        {"run.json": document(), "summary.json": {"loss": 3, "x": {"last": [1], "min": {"a": 1}}, "": {}}},
        {"run.json": document(artifacts=["../1/run.json", "/etc/passwd", "..", ".", "", "a\0b", "run.json/x"])},
        {
            "run.json": document(
                experiment={"name": "x", "sources": [["a.py", "../../../../etc/passwd"], ["b", "/etc/passwd"]]}
            )
        },
        {"run.json": document(resources=[["a", "/etc/passwd"], ["b", "../../../../../etc/passwd"]])},
        {
            "run.json": document(),
            "media.jsonl": "".join(
                json.dumps({**entry, "file": file}) + "\n"
                for file in ("../../1/run.json", "/etc/passwd", "media/../run.json")
            ),
        },
        {
            "run.json": document(),
            "media.jsonl": "{\n[]\nnull\n" + json.dumps({**entry, "file": "media/gone.png"}) + "\n\xff",
        },
        {
            "run.json": document(),
            "media.jsonl": "".join(
                json.dumps({**entry, "kind": kind, "file": "media/deep.json"}) + "\n" for kind in ("table", "histogram")
            ),
            "media/deep.json": DEEP,
        },
        {
            "run.json": document(),
            "media.jsonl": json.dumps({**entry, "kind": "histogram", "file": "media/h.json"}) + "\n",
            "media/h.json": '{"edges": [-1.7e308, 1.7e308, 1.7e308], "counts": [1e300, 0], "num": "x"}',
        },
        {
            "run.json": document(),
            "metrics.bin": os.urandom(2401),
            "metrics.names.jsonl": '{"id": 0, "name": "a"}\n{"id": 1}\n',
        },
        {
            "run.json": document(),
            "metrics.bin": bytes(2400),
            "metrics.names.jsonl": "{\n",
            "metrics.live": os.urandom(500),
        },
        {
            "run.json": document(status="RUNNING"),
            "lease.json": '{"pid": "x", "heartbeat": {}}',
            "cout.txt": os.urandom(400_000),
        },
        {
            "run.json": document(artifacts=["pipe", "folder", "link", "x.csv", "x.json", "x.png"]),
            "cout.txt": "\x1b[" * 100_000,
            "x.csv": '"' * 200_001,
            "x.json": DEEP,
            "x.png": "no picture",
        },
        {"run.json": document(experiment={"name": "e" * 2_000_000, "sources": []}, command_line=["y" * 2_000_000] * 3)},
        {
            "run.json": document(),
            "provenance.json": {"git": [], "packages": {f"p{n}": "1" for n in range(5_000)}, "x": None},
        },
        {
            "run.json": document(),
            "cout.txt": "no end of the line " * 40_000,
            "provenance.json": {"git": {"diff": "+x\n" * 300_000}},
        },
    ]


def write_hostile_runs(store: Path) -> int:
    """Write all of them, and return how many there are."""
    runs = [with_script_everywhere(), *broken_runs()]
    (store / "_sources").mkdir(parents=True)
    (store / "_sources" / "code.py").write_text(f"# {SCRIPT}\nx = '{SCRIPT}'\n")
    for number, files in enumerate(runs, 1):
        for name, content in files.items():
            path = store / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = json.dumps(content) if isinstance(content, dict | list) else content
            path.write_bytes(data if isinstance(data, bytes) else data.encode("latin-1", "replace"))
        if "x.csv" in files:
            os.mkfifo(store / str(number) / "pipe")
            (store / str(number) / "folder").mkdir()
            (store / str(number) / "link").symlink_to("/etc/passwd")
    return len(runs)
