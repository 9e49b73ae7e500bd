import contextlib
import resource
import sys

import pytest

from sacristan.__main__ import main
from sacristan.experiments.new import write_experiment
from sacristan.ingredients import ConfigError


@contextlib.contextmanager
def files_limited_to(num_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_new_experiment_bears_its_name_everywhere(tmp_path):
    paths = write_experiment("my_study", tmp_path)
    assert {path.name for path in paths} == {"my_study.py", "my_study.yaml", "test_my_study.py"}
    assert {*paths} == {*tmp_path.iterdir()}
    assert not any("NAME" in path.read_text() for path in paths)


@pytest.mark.parametrize("name", ["", "my-study", "2nd", "class", "_study", "__init__", "a.b", "../a", "größe"])
def test_name_that_cannot_be_imported_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=r"got .* expected a name that Python can import"):
        write_experiment(name, tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["test_study", "study_test", "conftest"])
def test_name_that_pytest_takes_for_a_test_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"pytest would collect {name}.py as a test"):
        write_experiment(name, tmp_path)


@pytest.mark.parametrize("name", ["torch", "experiments", "json", "sys", "my_runs"])
def test_name_of_a_module_is_refused(tmp_path, name):
    (tmp_path / "my_runs").mkdir()  # which is a module, too
    with pytest.raises(ConfigError, match=f"there is a module of that name already .* and {name}.py would be imported"):
        write_experiment(name, tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / "my_runs"]


def test_second_experiment_of_a_name_is_refused(tmp_path):
    write_experiment("study", tmp_path)
    with pytest.raises(ConfigError, match=r"study\.py exist already; choose another name, or remove them$"):
        write_experiment("study", tmp_path)


@pytest.mark.parametrize("file", ["study.py", "study.yaml", "test_study.py"])
def test_file_that_is_there_stays_as_it_is(tmp_path, file):
    (tmp_path / file).write_text("mine")
    with pytest.raises(ConfigError, match=rf"study: {file} exists already"):
        write_experiment("study", tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {file: "mine"}


def test_full_disk_leaves_nothing_half_written(tmp_path):
    # The recipe and the test fit, the script does not.
    with files_limited_to(2000), pytest.raises(ConfigError, match=r"cannot write to .*; nothing was written"):
        write_experiment("study", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_command_says_in_one_line_what_it_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "torch"]) == 1
    assert capsys.readouterr().err.startswith("error: torch: there is a module of that name already")
    assert main(["new", "study"]) == 0
    assert "python -m pytest test_study.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("is_installed", "command"),
    [(True, "  python -m pytest test_study.py"), (False, "  pip install pytest && python -m pytest test_study.py")],
)
def test_next_commands_install_pytest_where_it_is_missing(tmp_path, monkeypatch, capsys, is_installed, command):
    monkeypatch.chdir(tmp_path)
    if not is_installed:
        monkeypatch.setitem(sys.modules, "pytest", None)
    assert main(["new", "study"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == command
