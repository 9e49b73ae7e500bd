"""`sacristan show` of a record that has everything."""

from __future__ import annotations

import json

import pytest

from sacristan.__main__ import main

RUN = {
    "experiment": {"name": "train"},
    "command": "main",
    "status": "COMPLETED",
    "start_time": "2026-01-02T03:04:05",
    "stop_time": "2026-01-02T03:06:12",
    "result": 0.5,
    "uid": "u1",
    "parent": "u0",
    "command_line": ["train.py", "with", "name=a b"],
    "host": {"hostname": "node", "user": "ada"},
    "meta": {
        "sweep": {"id": "s1", "trial": 4, "attempt": 2, "parameters": {"lr": 0.1}},
        "config_updates": {"lr": 0.1},
    },
    "sessions": [
        {
            "start_time": "2026-01-02T03:04:05",
            "stop_time": "2026-01-02T03:05:05",
            "status": "INTERRUPTED",
            "interrupted_by": "SIGTERM",
            "step": 30,
            "host": "node",
            "user": "ada",
        },
        {
            "start_time": "2026-01-02T03:06:00",
            "status": "COMPLETED",
            "step": 60,
            "host": "other",
            "changed_sources": ["nets.py"],
            "changed_environment": {"library": {"numpy": ["1", "2"]}},
        },
    ],
}
FILES = {
    "run": RUN,
    "config": {"lr": 0.1},
    "info": {"ranks": [{"rank": 0, "host": "a", "pid": 11, "device": "cpu"}, {"rank": 1, "host": "b", "pid": 12}]},
    "summary": {"loss": {"last": 1, "min": 0.5, "max": 2, "count": 3}},
    "provenance": {"git": {"commit": "abc", "branch": "main", "dirty": True}},
}


@pytest.fixture
def shown(tmp_path, capsys):
    """Return the words of each line that is shown, by the heading above it."""
    (tmp_path / "1").mkdir()
    for name, content in FILES.items():
        (tmp_path / "1" / f"{name}.json").write_text(json.dumps(content))
    assert main(["--store", str(tmp_path), "show", "1"]) == 0
    sections, lines = {}, []
    for line in capsys.readouterr().out.splitlines():
        if line.startswith(" "):
            lines.append(" ".join(line.split()))
        else:
            lines = sections[line] = []
    return sections


def test_facts_are_shown(shown, tmp_path):
    assert shown["run 1  train  main"] == [
        "status COMPLETED",
        "time 2026-01-02 03:04:05 to 2026-01-02 03:06:12, 2m07s",
        "result 0.5",
        "uid u1",
        f"store {tmp_path}",
        "user ada",
        "host node",
        "command train.py with 'name=a b'",
        "git abc on main, with uncommitted changes",
        "sweep s1, trial 4, attempt 2: lr=0.1",
        "parent u0, which is not in this store",
    ]


def test_ranks_are_shown(shown):
    assert shown["ranks"] == ["rank host pid device", "0 a 11 cpu", "1 b 12 None"]


def test_sessions_are_shown_with_what_changed(shown):
    assert shown["sessions"] == [
        "start duration status step host changed",
        "2026-01-02 03:04:05 1m00s INTERRUPTED by SIGTERM 30 ada@node",
        "2026-01-02 03:06:00 12.0s COMPLETED 60 other nets.py, library numpy",
    ]


def test_config_and_metrics_are_shown(shown):
    assert [shown[name] for name in shown if name.startswith(("config", "metrics"))] == [
        ["lr 0.1 command line"],
        ["name count last min max", "loss 3 1 0.5 2"],
    ]
