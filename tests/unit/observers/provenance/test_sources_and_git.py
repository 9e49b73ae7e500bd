import hashlib
import subprocess
import sys
import types

import pytest

from sacristan.observers.provenance import commit_of, lab_git_state, uncommitted_files
from sacristan.observers.provenance.gathering import packages
from sacristan.observers.provenance.sources import imported_files, imported_sources, module_files, source_name


@pytest.fixture
def git(tmp_path):
    def run(*arguments):
        author = ["-c", "user.name=lab", "-c", "user.email=lab@localhost"]
        command = ["git", "-C", str(tmp_path), *author, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "-q", "-b", "master")
    return run


def test_repository_without_a_commit_has_its_branch_and_what_is_untracked(tmp_path, git):
    (tmp_path / "a.py").write_text("a = 1\n")
    state = lab_git_state(tmp_path, None)
    assert (state["root"], state["commit"], state["branch"]) == (str(tmp_path), None, "master")
    assert state["dirty"]
    assert state["untracked"] == {"a.py": "a = 1\n"}


def test_branch_and_detached_commit_are_told_from_a_folder_below_the_root(tmp_path, git):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("a = 1\n")
    git("add", "-A")
    git("commit", "-q", "-m", "All")
    git("checkout", "-q", "-b", "feature/new")
    state = lab_git_state(tmp_path / "part", None)
    assert (state["root"], state["commit"]) == (str(tmp_path), git("rev-parse", "HEAD"))
    assert (state["branch"], state["dirty"]) == ("feature/new", False)
    git("checkout", "-q", "--detach")
    assert lab_git_state(tmp_path, None)["branch"] is None


def test_folder_outside_of_a_repository_has_no_state(tmp_path):
    assert lab_git_state(tmp_path, None) is None


def test_git_is_asked_once_for_what_a_run_tells_when_it_is_made_and_when_it_is_recorded(tmp_path, git):
    (tmp_path / "a.py").write_text("a = 1\n")
    git("add", "-A")
    git("commit", "-q", "-m", "All")
    made = lab_git_state(tmp_path, None, content=False)
    git("checkout", "-q", "-b", "later")
    (tmp_path / "a.py").write_text("a = 2\n")
    recorded = lab_git_state(tmp_path, None)
    assert recorded == {**made, "diff": "", "untracked": {}}
    again = lab_git_state(tmp_path, None)
    assert (again["branch"], again["dirty"], "+a = 2" in again["diff"]) == ("later", True, True)
    lab_git_state(tmp_path / "elsewhere", None, content=False)
    assert lab_git_state(tmp_path, None) == again


def test_modules_that_come_change_and_go_are_noticed(tmp_path, monkeypatch):
    def put(name, path):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / path)
        monkeypatch.setitem(sys.modules, name, module)

    def found():
        files = module_files()
        return [files.get(str(tmp_path / folder), {}) for folder in ("one", "two")]

    put("comes_first", "one/a.py")
    put("comes_second", "one/b.py")
    before = found()
    assert before == [{"comes_first": f"{tmp_path}/one/a.py", "comes_second": f"{tmp_path}/one/b.py"}, {}]
    sys.modules["comes_first"].__file__ = "changed later"
    put("comes_first", "two/a.py")
    monkeypatch.delitem(sys.modules, "comes_second")
    assert found() == [{}, {"comes_first": f"{tmp_path}/two/a.py"}]
    assert len(before[0]) == 2


def test_sources_are_found_through_links_and_where_links_lead_away(tmp_path, monkeypatch):
    lab, elsewhere = tmp_path / "lab", tmp_path / "elsewhere"
    for folder in (lab / "parts", elsewhere):
        folder.mkdir(parents=True)
        (folder / "part.py").write_text("part = 1\n")
    (tmp_path / "link").symlink_to(lab)
    (lab / "away").symlink_to(elsewhere)
    (lab / "alone.py").symlink_to(elsewhere / "part.py")
    files = tmp_path / "link" / "parts" / "part.py", lab / "away" / "part.py", lab / "alone.py", elsewhere / "part.py"
    for number, path in enumerate(files):
        module = types.ModuleType(f"linked{number}")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    digest = hashlib.md5(b"part = 1\n").hexdigest()
    expected = [("alone.py", digest), ("away/part.py", digest), ("parts/part.py", digest)]
    assert imported_sources(lab) == expected


def test_main_file_that_a_link_outside_leads_to_is_a_source(tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "exp.py").write_text("")
    (tmp_path / "exp.py").symlink_to(tmp_path / "lab" / "exp.py")
    assert source_name(tmp_path / "exp.py", tmp_path / "lab") == "exp.py"
    assert source_name(tmp_path / "other.py", tmp_path / "lab") is None


def test_packages_are_those_that_the_metadata_name_and_no_line_of_a_readme(tmp_path, monkeypatch):
    folder = tmp_path / "part-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: part\nVersion: 1.0\n\nName: readme\nVersion: 2.0\n")
    (tmp_path / "half-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    found = packages()
    assert found["part"] == "1.0"
    assert not {"readme", "half"} & set(found)


def test_packages_that_are_installed_meanwhile_are_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "late" not in packages()
    (tmp_path / "late-1.0.dist-info").mkdir()
    (tmp_path / "late-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    assert packages()["late"] == "1.0"


def test_git_is_not_started_outside_of_a_repository(tmp_path, monkeypatch):
    (tmp_path / "inside" / "deep").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", tmp_path / "inside"], check=True)
    started = []
    original = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *words, **options: started.append(words) or original(*words, **options)
    )
    assert lab_git_state(tmp_path, None) is commit_of(tmp_path) is None
    assert started == []
    assert lab_git_state(tmp_path / "inside" / "deep", None)["root"] == str(tmp_path / "inside")


def test_module_that_takes_the_place_of_another_is_found(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.py").touch()
        module = types.ModuleType("part_of_a_lab")
        module.__file__ = str(tmp_path / name / "part.py")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        assert imported_files(tmp_path) == [f"{name}/part.py"]


def test_repository_that_git_cannot_compare_counts_as_changed(tmp_path, git):
    (tmp_path / "a.py").write_text("a = 1\n")
    git("add", "a.py")
    git("commit", "-m", "first")
    (tmp_path / ".git" / "index").write_bytes(b"damaged")
    state = lab_git_state(tmp_path, None)
    assert (state["commit"], state["dirty"], state["diff"]) == (git("rev-parse", "HEAD"), True, None)
    assert uncommitted_files(tmp_path, []) is None


@pytest.mark.parametrize(
    ("variables", "problem", "hint"),
    [
        (
            {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"},
            "git refuses the repository, which belongs to another user",
            "; if you trust it: git config --global --add safe.directory {root}",
        ),
        ({"PATH": "/nowhere"}, "git is not installed", ""),
        (
            {},
            "git cannot read the repository (fatal: bad config line 2 in file .git/config)",
            "",
        ),
    ],
)
def test_repository_that_git_does_not_read_is_told_once(tmp_path, monkeypatch, caplog, variables, problem, hint):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not variables:
        (tmp_path / ".git" / "config").write_text("[")
    state = lab_git_state(tmp_path, None, content=False)
    root = str(tmp_path.resolve())
    problem = problem.format(root=root)
    expected = {"root": root, "url": f"git:{root}", "commit": None, "branch": None, "dirty": True, "problem": problem}
    assert state == expected
    assert lab_git_state(tmp_path, None) == {**expected, "diff": None, "untracked": {}}
    lab_git_state(tmp_path, None)
    text = f"the run is recorded without commit and uncommitted changes, because {problem}{hint.format(root=root)}"
    assert [record.getMessage() for record in caplog.records] == [f"{root}: {text}"]
