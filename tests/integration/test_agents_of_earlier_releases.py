"""Agents of release 0.2.0 and of this version work on the same sweep: no point is tried twice, and none is lost."""

import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from sacristan.runs import open_store
from tests.processes import STDOUT, Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
# The commit of the release, which imported its packages under their bare names.
RELEASE = "a6a635ce"
TINY = """
import os, time
if os.environ.get("OF_RELEASE"):
    from experiments import Experiment
    from ingredients import sweep
else:
    from sacristan.experiments import Experiment
    from sacristan.ingredients import sweep
ex = Experiment("tiny", ingredients=[sweep.ingredient], system_metrics_s=None)

@ex.config
def config():
    # where the loss is measured
    x = 0.0
    seed = 0

@ex.automain
def main(x, _run):
    _run.log_scalar("loss", (x - 2) ** 2, 0)
    _run.log_scalar("release", bool(os.environ.get("OF_RELEASE")), 0)
    while not os.path.exists("both_work"):
        time.sleep(0.02)
"""
NUM_POINTS = 14
OVER = f"sweep.over={{x: {[float(x) for x in range(NUM_POINTS)]}}}"
FAST = "sweep.packages=['sacred','sacred.observers','sacred.commandline_options']"


@pytest.fixture(scope="session")
def mongo_url(journaled_mongo_url):
    return journaled_mongo_url


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A folder with the packages of the release, from the history of this clone."""
    folder = tmp_path_factory.mktemp("release")
    packages = ("configs", "experiments", "ingredients", "observers", "runs")
    archived = subprocess.run(["git", "-C", ROOT, "archive", "-o", folder / "lab.tar", RELEASE, *packages])
    if archived.returncode:
        pytest.skip(f"this clone lacks the commit {RELEASE} of release 0.2.0; fetch all of the history")
    with tarfile.open(folder / "lab.tar") as stream:
        stream.extractall(folder, filter="data")
    return folder


@pytest.fixture(params=["folder", "database"])
def where(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "my_runs")
    return f"{request.getfixturevalue('mongo_url').rstrip('/')}/{request.getfixturevalue('database').name}"


@pytest.fixture
def start(release, where, tmp_path):
    """Start a command of the experiment by the release or by this version."""
    (tmp_path / "tiny.py").write_text(TINY)
    options = ["-m", where] if where.startswith("mongodb") else []

    def started(*words, of_release):
        environment = {**os.environ, **({"OF_RELEASE": "1", "PYTHONPATH": str(release)} if of_release else {})}
        with (tmp_path / f"output-{of_release}.txt").open("a") as output:
            return Process(
                [sys.executable, "tiny.py", *words, FAST, *options],
                cwd=tmp_path,
                env=environment,
                stdout=output,
                stderr=STDOUT,
                cold=True,
            )

    return started


def wait_until(condition, agents, tmp_path):
    deadline = time.monotonic() + 300
    while not condition():
        said = "".join(path.read_text() for path in tmp_path.glob("output-*.txt"))
        assert any(agent.poll() is None for agent in agents), said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def trials(where):
    """Return trial, attempt, status and version of each run of the sweep."""
    with open_store(where, create=True) as store:
        return [
            (run.get("meta.sweep.trial"), run.get("meta.sweep.attempt"), run.status, run.get("release.last"))
            for run in store.find()
        ]


@pytest.mark.parametrize("is_release_killed", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("of_release", [True, False], ids=["release's sweep", "this version's sweep"])
def test_agents_of_two_versions_share_a_sweep_and_one_goes_on_when_the_other_is_killed(
    start, where, tmp_path, of_release, is_release_killed
):
    first = start("sweep.run", "with", OVER, "sweep.metric=loss", "sweep.id=shared", of_release=of_release)
    wait_until(lambda: trials(where), [first], tmp_path)
    second = start("sweep.agent", "with", "sweep.id=shared", of_release=not of_release)
    agents = {of_release: first, not of_release: second}

    def both_have(status):
        return {release for _, _, its_status, release in trials(where) if its_status == status} == {0.0, 1.0}

    wait_until(lambda: both_have("RUNNING"), agents.values(), tmp_path)
    (tmp_path / "both_work").touch()
    wait_until(lambda: both_have("COMPLETED"), agents.values(), tmp_path)
    agents[is_release_killed].close()  # kills its run, too
    survivor = agents[not is_release_killed]
    assert survivor.wait(300) == 0, (tmp_path / f"output-{not is_release_killed}.txt").read_text()
    found = trials(where)
    assert sorted(trial for trial, _, status, _ in found if status == "COMPLETED") == list(range(NUM_POINTS))
    assert len({(trial, attempt) for trial, attempt, _, _ in found}) == len(found)
    assert len(found) <= NUM_POINTS + 1  # the killed run
