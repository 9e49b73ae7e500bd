"""Failures of a rank, as the others hear of them without exchanging anything else."""

import json
import signal
import sys

import pytest

from tests.processes import run
from tests.ranks import started_ranks, wait_for_all

# Rank 0 computes, and never waits for rank 1, as where it waits in a kernel; rank 1 ends as its argument says.
SCRIPT = """
import os
import signal
import sys
import time

from sacristan.ingredients.errors import RankError
from sacristan.ingredients.ranks.group import Ranks
from sacristan.ingredients.ranks import Notices, world_of

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


# Native code that runs in a thread when Python ends aborts the process. Python is imported once, and forked.
ENDS = """
import json
import os
import signal
import socket
import sys

import torch.distributed as dist

from sacristan.ingredients import ranks as module
from sacristan.ingredients.ranks.group import join
from sacristan.ingredients.ranks import Notices, World

module._WATCH_S = 0.0  # so that the thread is always asking the store


def interrupted(how):
    begin = dist.init_process_group

    def init(*args, **options):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        begin(*args, **options)

    dist.init_process_group = init
    signal.signal(signal.SIGALRM, how)


def raised():
    raise ValueError("boom")


def by_alarm(number, frame):
    os.kill(os.getpid(), signal.SIGINT)


ends = {
    "well": (1, lambda: None, lambda: None),
    "by an error": (1, lambda: None, raised),
    "by exit": (1, lambda: None, lambda: sys.exit(3)),
    "by Ctrl-C": (1, lambda: None, lambda: os.kill(os.getpid(), signal.SIGINT)),
    "in a group that the user has destroyed": (1, lambda: None, dist.destroy_process_group),
    "without the other rank": (2, lambda: None, raised),
    "by Ctrl-C in the rendezvous": (2, lambda: interrupted(by_alarm), raised),
    "by sys.exit in the rendezvous": (2, lambda: interrupted(lambda *_: sys.exit(4)), raised),
}
found = {}
for name, (size, begin, end) in ends.items():
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
        notices = Notices(World(0, size))
        if size == 2:  # one that says it is here, and never connects
            notices.put("joining/1", True)
            Notices(World(1, size))
        begin()
        join(notices, {"backend": "gloo", "timeout_s": 0.5})
        end()
        break
    found[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
else:
    print(json.dumps(found))
"""


@pytest.mark.slow
def test_process_that_ends_at_or_after_its_launch_has_its_own_exit_code(tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)
    done = run([sys.executable, "ends.py"], cwd=tmp_path, capture_output=True, text=True, cold=True)
    assert json.loads(done.stdout) == {
        "well": 0,
        "by an error": 1,
        "by exit": 3,
        "by Ctrl-C": -signal.SIGINT,
        "in a group that the user has destroyed": 0,
        "without the other rank": 1,
        "by Ctrl-C in the rendezvous": -signal.SIGINT,
        "by sys.exit in the rendezvous": 4,
    }, done.stderr
