"""The layout of a lineage."""

from __future__ import annotations

from sacristan.runs.board.lineage import LineageGraph, Node


def test_picture_has_room_for_each_node_and_the_same_margin_on_all_sides():
    graph = LineageGraph()
    for key, (rank, row) in {"a": (0, 0), "b": (1, 2), "c": (2, 1)}.items():
        assert graph.add(key, Node(key, "", rank=rank, row=row))
    width, height = graph.node_size
    places = [node.at for node in graph.nodes.values()]
    left, top = (min(place) for place in zip(*places, strict=True))
    assert left == top > 0
    assert graph.size == (max(x for x, _ in places) + width + left, max(y for _, y in places) + height + top)
