"""A server that answers the queries of W&B's client with recorded answers: `python wandb_server.py PORT BEHAVIOUR`.

The behaviour is JSON: `fails`, ids of runs whose history fails; `dies`, the id of a run whose history kills the server;
`limits`, how many queries for runs are answered by 429 first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

STATES = {"one": "finished", "two": "failed", "three": "crashed", "four": "killed", "five": "running"}
PAGE, ROWS = 2, 1500  # of runs; of the history of the first run, beyond a page of the client


def history(name: str) -> list[dict[str, Any]]:
    """Return the rows of a run's history, as W&B stores them."""
    rows: list[dict[str, Any]] = [
        {"_step": step, "_timestamp": 1.7e9 + step, "_runtime": step, "train/loss": 1 / (step + 1)}
        for step in range(ROWS if name == "one" else 3)
    ]
    rows[0] |= {"odd": "NaN", "word": "text", "val": {"accuracy": 0.5}, "image": {"_type": "image-file", "path": "a"}}
    rows[1] |= {"odd": "Infinity"}
    rows[2] |= {"odd": "-Infinity"}
    return rows


def _run(name: str) -> dict[str, Any]:
    return {
        "id": f"id-{name}", "projectId": "1", "name": name, "displayName": f"run {name}", "tags": ["first try"],
        "sweepName": None, "state": STATES[name], "group": "all", "jobType": None, "commit": None, "readOnly": False,
        "createdAt": "2023-11-14T22:13:20Z", "heartbeatAt": "2023-11-14T22:15:00Z", "description": None,
        "notes": "a note", "historyLineCount": len(history(name)), "user": {"name": "Ada", "username": "ada"},
        "config": json.dumps({"lr": {"value": 0.1}, "net": {"value": {"width": 3}}, "_wandb": {"value": {}}}),
        "systemMetrics": "{}", "summaryMetrics": json.dumps({"train/loss": 0.1, "best": 0.9, "_step": 2}),
        "historyKeys": {"lastStep": len(history(name)) - 1, "keys": {}},
    }  # fmt: skip


def _runs(cursor: str | None) -> dict[str, Any]:
    at = int(cursor or 0)
    edges = [{"node": _run(name), "cursor": str(at + PAGE)} for name in list(STATES)[at : at + PAGE]]
    page = {"endCursor": str(at + PAGE), "hasNextPage": at + PAGE < len(STATES)}
    return {"internalId": "1", "runCount": len(STATES), "readOnly": False, "runs": {"edges": edges, "pageInfo": page}}


class Handler(BaseHTTPRequestHandler):
    """Answers GraphQL."""

    protocol_version = "HTTP/1.1"
    behaviour: ClassVar[dict[str, Any]] = {}

    def do_POST(self) -> None:
        """Answer a query."""
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/graphql":
            self._send(404, {})
            return
        question = json.loads(data)
        query, variables = question["query"], question.get("variables") or {}
        name = variables.get("run") or variables.get("runName") or variables.get("name")
        if "history(" in query and name == self.behaviour.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        if "runs(" in query and self.behaviour.get("limits", 0) > 0:
            self.behaviour["limits"] -= 1
            self._send(429, {"errors": [{"message": "rate limit exceeded"}]})
        elif "history(" in query and name in self.behaviour.get("fails", ()):
            self._send(500, {"errors": [{"message": "on purpose"}]})
        else:
            self._send(200, {"data": _answer(query, variables, name)})

    def _send(self, code: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _answer(query: str, variables: dict[str, Any], name: str | None) -> dict[str, Any]:
    if "runs(" in query:
        return {"project": _runs(variables.get("cursor"))}
    if "history(" in query:
        rows = history(str(name))[variables["minStep"] : variables["maxStep"]]
        return {"project": {"run": {"history": [*map(json.dumps, rows)]}}}
    viewer = {"id": "1", "entity": "team", "username": "ada", "email": "", "flags": "{}", "teams": {"edges": []}}
    return {"viewer": viewer, "project": {"internalId": "1", "run": _run(name) if name else None}}


if __name__ == "__main__":
    Handler.behaviour = json.loads(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
