"""The rank of this process among several."""

import pytest

from sacristan.ingredients import ConfigError
from sacristan.ingredients.ranks import World, world_of
from sacristan.ingredients.ranks.group import ALONE, Ranks

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "4"}
TORCHRUN = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "3"}


def test_world_of_what_torchrun_says():
    assert world_of({**MEETING, **TORCHRUN}) == World(1, 4, 1, 2, "job", 3, node=0)


@pytest.mark.parametrize("missing", MEETING)
def test_world_without_all_of_the_variables_is_that_of_a_process_alone(missing):
    # Such as WORLD_SIZE, which cluster software sets for other purposes.
    assert world_of({name: value for name, value in MEETING.items() if name != missing}) == World()


def test_world_of_one_process_is_that_of_a_process_alone():
    assert world_of({**MEETING, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) == World()


def test_launches_without_an_id_are_told_apart_by_the_process_that_started_them():
    found = world_of({**MEETING, "TORCHELASTIC_RUN_ID": "none"})
    assert found.launch not in ("", "none")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "x"}, "RANK: got 'x', expected a number"),
        ({"RANK": "4"}, "RANK=4, WORLD_SIZE=4, .* expected ranks from 0"),
    ],
)
def test_world_that_cannot_be_is_refused(environ, said):
    with pytest.raises(ConfigError, match=said):
        world_of({**MEETING, **environ})


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 15, 16])
def test_shares_are_all_rows_in_order_and_alike(size, count):
    shares = [Ranks(World(rank, size)).share(range(count)) for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_process_alone_exchanges_with_itself():
    assert ALONE.gather("x") == ["x"]
    assert ALONE.from_first(lambda: 3) == 3
    assert ALONE.agree(15) == 15


STEP = {
    "SLURM_JOB_ID": "41234",
    "SLURM_STEP_ID": "2",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[03-05,07]-ib,login",
}


def test_tasks_of_srun_are_ranks():
    assert world_of(STEP) == World(5, 7, 1, 2, "slurm-41234.2-0", node=2, meeting="gpu03-ib:21436")
    last = {**STEP, "SLURM_NODEID": "3", "SLURM_PROCID": "6", "SLURM_LOCALID": "0", "SLURM_RESTART_COUNT": "1"}
    assert world_of(last) == World(6, 7, 0, 1, "slurm-41234.2-1", node=3, meeting="gpu03-ib:21436")
    assert world_of({**STEP, "MASTER_ADDR": "head", "MASTER_PORT": "9"}).meeting == "head:9"
    one = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "7", "SLURM_NODEID": "0"}
    assert world_of(one).meeting == "127.0.0.1:21436"


def test_torchrun_in_a_task_of_srun_counts():
    assert world_of({**STEP, **MEETING, **TORCHRUN}) == World(1, 4, 1, 2, "job", 3, node=0)


@pytest.mark.parametrize("other", [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": ""}, {"SLURM_PROCID": ""}])
def test_a_single_task_and_a_batch_script_are_processes_alone(other):
    assert world_of({**STEP, "SLURM_NTASKS": "7", **other}) == World()


def test_a_variable_of_slurm_that_holds_no_number_is_named():
    with pytest.raises(ConfigError, match="SLURM_PROCID: got 'x', expected a number"):
        world_of({**STEP, "SLURM_PROCID": "x"})
