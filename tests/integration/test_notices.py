"""Failures of a rank, as the others hear of them without exchanging anything else."""

import signal

import pytest

from tests.ranks import started_ranks, wait_for_all

# Rank 0 computes, and never waits for rank 1, as where it waits in a kernel; rank 1 ends as its argument says.
SCRIPT = """
import os
import signal
import sys
import time

from sacristan.ingredients.errors import RankError
from sacristan.ingredients.ranks.group import Ranks
from sacristan.ingredients.ranks.world import Notices
from sacristan.ingredients.ranks.world import world_of

world = world_of(os.environ)
notices = Notices(world)
notices.take(f"here/{1 - world.rank}")
notices.know_all()
if world.rank:
    print("here", flush=True)
    if sys.argv[1] == "KILLED":
        signal.pause()
    notices.tell_end(sys.argv[1], "a reason")
    notices.take("over")
    sys.exit()
notices.watch()
until = time.monotonic() + 30
while notices._known is None and time.monotonic() < until:
    time.sleep(0.01)
ranks = Ranks(world, notices)
ranks._begin = lambda number: None
try:
    ranks.poll(0)
    print("goes on")
except RankError as error:
    print(error)
notices.put("over", True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "ranks.py"
    path.write_text(SCRIPT)
    return path


def test_rank_that_is_killed_is_known_without_an_exchange(script, tmp_path):
    with started_ranks([script, "KILLED"], tmp_path) as ranks:
        assert ranks[1].stdout.readline() == "here\n"
        ranks[1].send_signal(signal.SIGKILL)
        (code, said, errors), _ = wait_for_all(ranks)
    assert code == 0, errors
    assert said.startswith("rank 1 (pid "), said
    assert "is gone without a word" in said


@pytest.mark.parametrize(
    ("status", "said"),
    [("FAILED", "failed: a reason\n"), ("INTERRUPTED", "goes on\n")],  # of a signal all know after the same step
)
def test_rank_that_leaves_word_is_known_without_an_exchange(script, tmp_path, status, said):
    with started_ranks([script, status], tmp_path) as ranks:
        (code, found, errors), _ = wait_for_all(ranks)
    assert code == 0, errors
    assert found.endswith(said), found
