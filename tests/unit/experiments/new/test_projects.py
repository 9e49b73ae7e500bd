import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from sacristan.experiments.new import write_project
from sacristan.ingredients import ConfigError
from tests.processes import PIPE, Process
from tests.unit.experiments.new.test_writing import files_limited_to


def test_project_is_a_repository_that_bears_its_name_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a hook of git
    paths = write_project("my_vision", tmp_path)
    monkeypatch.delenv("GIT_DIR")
    project = tmp_path / "my_vision"
    assert [*tmp_path.iterdir()] == [project]
    status = ["git", "-C", project, "status", "--porcelain", "--untracked-files=all"]
    untracked = subprocess.run(status, capture_output=True, text=True, check=True).stdout.split()[1::2]
    assert sorted(untracked) == sorted(path.relative_to(project).as_posix() for path in paths)
    assert sorted(untracked) == [
        *(".github/workflows/tests.yml", ".gitignore", "README.md", "exp.py", "my_vision/__init__.py"),
        *("my_vision/noise.py", "pyproject.toml", "recipes/my_vision.yaml", "tests/test_exp.py"),
    ]
    assert not any("$" in path.read_text() for path in paths)
    declared = tomllib.loads((project / "pyproject.toml").read_text())
    assert declared["project"]["name"] == "my_vision"
    assert declared["project"]["dependencies"] == ["sacristan[sweeps,board]"]
    assert yaml.safe_load((project / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    # the checkout that this lab is
    assert f"pip wheel --no-deps -w wheels {Path(__file__).parents[4]}\n" in (project / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-vision", "expected a name that Python can import.* write for example my_vision$"),
        ("class", "expected a name that Python can import.* write for example my_study$"),
        ("test_vision", "pytest would collect test_vision.py"),
        ("json", "there is a module of that name already .* and the package json would be imported in its place"),
        ("torch", "there is a module of that name already"),
        *(
            (name, "every project has a file, folder or package called")
            for name in ("exp", "tests", "recipes", "sacristan")
        ),
        ("scikit_learn", "an installed package has that name already, which pip would replace"),
    ],
)
def test_name_that_would_hide_something_is_refused(tmp_path, name, message):
    with pytest.raises(ConfigError, match=f"^{name}: .*{message}.*") as caught:
        write_project(name, tmp_path)
    assert "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_existing_folder_stays_as_it_is(tmp_path, make):
    make(tmp_path / "vision")
    with pytest.raises(ConfigError, match=r"^vision: .*/vision exists already; choose another name, or remove it$"):
        write_project("vision", tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / "vision"]


def test_full_disk_leaves_nothing_half_written(tmp_path):
    with files_limited_to(2000), pytest.raises(ConfigError, match=r"cannot write to .*; nothing was written$"):
        write_project("vision", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write to .*: No such file or directory; nothing was written$"):
        write_project("vision", tmp_path / "nowhere")


def test_without_git_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^vision: git is not installed, .*; nothing was written$"):
        write_project("vision", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_where_git_fails_nothing_is_written(tmp_path, monkeypatch):
    (tmp_path / ".gitconfig").write_text("no config\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^vision: git init failed \(.*bad config .*\); nothing was written$"):
        write_project("vision", tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / ".gitconfig"]


def test_interrupted_command_leaves_nothing(tmp_path):
    # A git that waits until the test has seen it.
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\necho here > {tmp_path}/begun\nexec sleep 60\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    os.mkfifo(tmp_path / "begun")
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "sacristan", "new", "vision", "--project"]
    with Process(command, cwd=tmp_path / "work", env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert (tmp_path / "begun").read_text() == "here\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == "error: interrupted; nothing was written\n"
    assert [*(tmp_path / "work").iterdir()] == []
