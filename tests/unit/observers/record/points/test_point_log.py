"""Points of forked children on their way: each is taken once, also by a parent that is killed on the way."""

from __future__ import annotations

import pytest

from sacristan.observers.record.points.point_log import ChildPoint, ChildPoints

POINTS = [ChildPoint("loss", step, step / 7, 0.5) for step in range(10)]


@pytest.fixture
def children(tmp_path):
    """A parent's, with ten points."""
    found = ChildPoints(tmp_path)
    found.create()
    found.after_fork()
    for point in POINTS:
        found.add(point)
    return found


def take(children, **options):
    with children.taken(**options) as points:
        return list(points)


def test_points_are_taken_once_and_more_may_come(children):
    assert take(children) == POINTS
    assert take(children) == []
    children.add(POINTS[3])
    assert take(children, last=True) == [POINTS[3]]
    assert not children.path.exists()
    with pytest.raises(FileNotFoundError):
        children.add(POINTS[0])


@pytest.mark.parametrize("number", [0, 4, 9])
def test_parent_that_is_killed_on_the_way_leaves_what_it_has_not_taken(children, tmp_path, number):
    def take_some():
        with children.taken() as points:
            for taken, _ in enumerate(points):
                if taken == number:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_some()
    with ChildPoints(tmp_path).left() as points:
        # The one that was being taken may be there twice; those before are not.
        assert points == POINTS[number:]
    assert not children.path.exists()


def test_what_is_left_stays_where_it_cannot_be_kept(children, tmp_path):
    with pytest.raises(OSError, match="full"), ChildPoints(tmp_path).left():
        raise OSError("full")
    with ChildPoints(tmp_path).left() as points:
        assert points == POINTS


def test_damaged_line_is_left_out_with_a_word(children, caplog):
    with children.path.open("ab") as stream:
        stream.write(b"not JSON\n")
    children.add(POINTS[0])
    assert take(children) == [*POINTS, POINTS[0]]
    assert "a line of 9 bytes is damaged" in caplog.text
