"""The lineage of a run as a drawing: its ancestors and descendants, and the artifacts that it made or used."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from sacristan.runs.board.rendering import run_url
from sacristan.runs.board.views import rooted
from sacristan.runs.comparison.curves import Ancestry
from sacristan.runs.query import mappings_in
from sacristan.runs.query.filters import Question
from sacristan.runs.query.texts import short_text
from sacristan.runs.stores import Run, Store
from sacristan.runs.stores.settings import title_of

_MAX_NODES, _MAX_GENERATIONS, _MAX_ARTIFACTS, _MAX_SESSIONS = 50, 20, 10, 10
# The state that a run was started from.
_START = "config.checkpoint.resume"
_COLUMNS = ("uid", "parent", "name", "status", "start_time", "display_name", _START)
# Size of a node, and distance from one to the next, in pixels.
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 176, 40, 224, 52
_MARGIN, _MAX_LABEL = 4, 20


@dataclasses.dataclass
class Node:
    """A run or a version of an artifact."""

    label: str
    url: str
    run: Run | None = None  # the run; None for an artifact
    state: str = ""  # the status of an earlier session of the run; by default that of the run
    rank: int = 0
    row: int = 0

    @property
    def short(self) -> str:
        return short_text(self.label, _MAX_LABEL)

    @property
    def kind(self) -> str:
        """The second line: the status of the run or of the earlier session."""
        return (self.state or self.run.status or "unknown").lower() if self.run else "artifact"

    @property
    def at(self) -> tuple[int, int]:
        """Its left upper corner in pixels."""
        return _MARGIN + self.rank * _ACROSS, _MARGIN + self.row * _DOWN


@dataclasses.dataclass(frozen=True)
class Edge:
    """A relation: `second` resumes, forks or reproduces `first`, was made by it, or used it."""

    first: Node
    second: Node
    relation: str

    @property
    def path(self) -> str:
        (x, y), (to_x, to_y) = self.first.at, self.second.at
        x, y, to_y = x + _WIDTH, y + _HEIGHT // 2, to_y + _HEIGHT // 2
        half = max(30, (to_x - x) // 2)
        return f"M{x} {y}C{x + half} {y} {to_x - half} {to_y} {to_x} {to_y}"


@dataclasses.dataclass
class LineageGraph:
    """Nodes by key, the run itself first, and edges, laid out in columns from left to right."""

    nodes: dict[str, Node] = dataclasses.field(default_factory=dict)
    edges: list[Edge] = dataclasses.field(default_factory=list)
    is_cut: bool = False

    node_size = _WIDTH, _HEIGHT

    @property
    def size(self) -> tuple[int, int]:
        ends = [node.at for node in self.nodes.values()]
        return max(x for x, _ in ends) + _WIDTH + _MARGIN, max(y for _, y in ends) + _HEIGHT + _MARGIN

    def add(self, key: str, node: Node) -> bool:
        """Add a node unless it is there; return whether it is there now."""
        if key not in self.nodes and len(self.nodes) >= _MAX_NODES:
            self.is_cut = True
            return False
        self.nodes.setdefault(key, node)
        return True

    def add_run(self, run: Run) -> bool:
        return self.add(_key(run), Node(title_of(run), run_url(run.id), run))

    def join(self, first: str, second: str, relation: str) -> None:
        edge = Edge(self.nodes[first], self.nodes[second], relation)
        if edge.first is not edge.second and edge not in self.edges:
            self.edges.append(edge)

    def lay_out(self) -> None:
        """Place each node to the right of its predecessors; cycles, which a foreign record may have, are broken."""
        for _ in range(_MAX_GENERATIONS):
            for edge in self.edges:
                edge.second.rank = max(edge.second.rank, min(edge.first.rank + 1, _MAX_GENERATIONS))
        columns: dict[int, list[Node]] = {}
        for node in self.nodes.values():
            columns.setdefault(node.rank, []).append(node)
        # Columns of a cycle may be empty.
        for rank, (_, column) in enumerate(sorted(columns.items())):
            column.sort(key=lambda node: max((e.first.row for e in self.edges if e.second is node), default=0))
            for row, node in enumerate(column):
                node.rank, node.row = rank, row


def lineage_of(store: Store, run: Run) -> LineageGraph:
    """Return the lineage of a run: at most 50 sessions, relatives and artifacts, by one query a generation."""
    search = _Search(store, run.listed())
    search.add_sessions()
    search.add_ancestors()
    search.add_reproductions()
    search.add_artifacts()
    search.add_descendants()
    search.graph.lay_out()
    return search.graph


class _Search:
    """Finds the lineage of a run, with few queries."""

    def __init__(self, store: Store, run: Run) -> None:
        self.store, self.run = store, run
        self.graph = LineageGraph()
        self.graph.add_run(run)

    def _join(self, first: Run, second: Run) -> None:
        """Join two runs: a fork starts from a state of its parent, a reproduction from where the other run started."""
        is_fork = second.get(_START) not in (None, first.get(_START))
        self.graph.join(_key(first), self._first(second), "fork" if is_fork else "reproduction")

    def _first(self, run: Run) -> str:
        """Return the node that a run begins with: its first session if that is drawn."""
        first = _session_key(run, 0)
        return first if first in self.graph.nodes else _key(run)

    def add_sessions(self) -> None:
        """Add the sessions before the last resume of the run; its own node is the last session."""
        sessions = self.run.sessions[:-1]
        self.graph.is_cut |= len(sessions) > _MAX_SESSIONS
        before = None
        for number, session in list(enumerate(sessions))[-_MAX_SESSIONS:]:
            shown = 0 if before is None else number
            key = _session_key(self.run, shown)
            state = str(session.get("status") or "unknown")
            label = f"{title_of(self.run)}, session {number + 1}"
            self.graph.add(key, Node(label, run_url(self.run.id), self.run, state))
            if before is not None:
                self.graph.join(before, key, "resume")
            before = key
        if before is not None:
            self.graph.join(before, _key(self.run), "resume")

    def _runs_of(self, uids: Iterable[Any]) -> dict[str, Run]:
        wanted = [uid for uid in dict.fromkeys(uids) if isinstance(uid, str)][:_MAX_NODES]
        runs = self._find({"uid": {"$in": wanted}}) if wanted else []
        return {run.uid: run for run in runs if run.uid}

    def _find(self, document: Mapping[str, Any], sort: str | None = None, limit: int | None = None) -> list[Run]:
        question = Question.of(document, sort, limit, _COLUMNS)  # no run may have been started from a state
        return [run.listed() for run in self.store.answer(question)]

    def add_ancestors(self) -> None:
        for parent, child in Ancestry([self.run]).of(self.run):
            if self.graph.add_run(parent):
                self._join(parent, child)

    def add_reproductions(self) -> None:
        pairs = [(entry.get("of"), entry.get("by")) for entry in self.run.reproductions]
        others = {**self._runs_of(uid for pair in pairs for uid in pair), _key(self.run): self.run}
        for of, by in pairs:
            if of in others and by in others and all(map(self.graph.add_run, (others[of], others[by]))):
                self.graph.join(of, by, "reproduction")

    def add_descendants(self) -> None:
        parents = {_key(self.run): self.run} if self.run.uid else {}
        for _ in range(_MAX_GENERATIONS):
            if not parents:
                return
            wanted = {"parent": {"$in": list(parents)}}
            children = self._find(wanted, "start_time", _MAX_NODES + 1)
            new = [child for child in children if _key(child) not in self.graph.nodes]
            for child in children:
                if self.graph.add_run(child):
                    self._join(parents[child.get("parent")], child)
            parents = {child.uid: child for child in new if child.uid in self.graph.nodes}

    def add_artifacts(self) -> None:
        own = _key(self.run)
        for field, relation in (("artifacts_used", "used"), ("artifacts_logged", "made")):
            for name, version in _versions(self.run, field):
                key = f"{name}:v{version}"
                if self.graph.add(key, Node(key, rooted(f"/artifacts/{quote(name, safe='')}#v{version}"))):
                    self.graph.join(*((key, own) if relation == "used" else (own, key)), relation)
                    self._add_users(name, version, key)

    def _add_users(self, name: str, version: int, key: str) -> None:
        lineage = self.store.artifact_lineage(name, version)
        pairs = [(uid, key, "made", uid) for uid in lineage.made_by[:_MAX_NODES]]
        pairs += [(key, uid, "used", uid) for uid in lineage.used_by[:_MAX_NODES]]
        others = self._runs_of(uid for *_, uid in pairs)
        for first, second, relation, uid in pairs:
            if uid in others and self.graph.add_run(others[uid]):
                self.graph.join(first, second, relation)


def _key(run: Run) -> str:
    return run.uid or run.id


def _session_key(run: Run, number: int) -> str:
    return f"{_key(run)}#{number}"


def _versions(run: Run, field: str) -> Iterator[tuple[str, int]]:
    for entry in mappings_in(run.get(field))[:_MAX_ARTIFACTS]:
        name, version = entry.get("name"), entry.get("version")
        if isinstance(name, str) and isinstance(version, int):  # a foreign record may hold anything
            yield name, version
