import hashlib
import json
import os
import shutil
import subprocess

import pytest

from sacristan.observers.provenance import lab_git_state
from sacristan.runs import LaunchError, open_store
from sacristan.runs.rerun import Record, restoring
from tests.folders import read_files


def git(folder, *words):
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def lab(tmp_path):
    """A repository with a lab in the folder `sub`, a commit, a change that is not committed, and a new file."""
    root = tmp_path / "repository"
    lab = root / "sub"
    (lab / "pack").mkdir(parents=True)
    (lab / "exp.py").write_text("import pack\n")
    (lab / "pack" / "__init__.py").write_text("value = 1\n")
    (lab / "data.bin").write_bytes(bytes(range(256)))
    (root / ".gitattributes").write_text("data.bin export-ignore\n")
    git(tmp_path, "init", "-q", "repository")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    (lab / "pack" / "__init__.py").write_text("value = 2\n")
    (lab / "data.bin").write_bytes(bytes(range(255)))
    (lab / "new.py").write_text("new = True\n")
    return lab


@pytest.fixture
def record(tmp_path):
    """Record what a lab is made of, as a run does, and return that run."""

    def write(lab, names=("exp.py", "pack/__init__.py", "new.py"), *, git=True, **entries):
        store = tmp_path / "store"
        (store / "1").mkdir(parents=True)
        (store / "_sources").mkdir()
        sources = []
        for name in names:
            content = (lab / name).read_bytes()
            stem, _, suffix = name.rpartition("/")[2].rpartition(".")
            kept = f"_sources/{stem}_{hashlib.md5(content).hexdigest()}.{suffix}"
            (store / kept).write_bytes(content)
            sources.append([name, kept])
        experiment = {"name": "exp", "base_dir": str(lab), "mainfile": "exp.py", "sources": sources}
        record = {"experiment": experiment, "command": "main", "status": "COMPLETED", **entries}
        (store / "1" / "run.json").write_text(json.dumps(record))
        state = lab_git_state(lab, None) if git else None
        (store / "1" / "provenance.json").write_text(json.dumps({"git": state, "packages": {}}))
        return open_store(store).get("1")

    return write


def restore(run, folder):
    return restoring.restore(Record(run), folder)


def test_restored_code_is_what_ran_after_the_lab_has_moved_on(lab, record, tmp_path):
    run = record(lab)
    expected = read_files(lab)
    (lab / "pack" / "__init__.py").unlink()
    (lab / "new.py").unlink()
    git(lab, "add", "-A")
    git(lab, "commit", "-qm", "second")
    (lab / "exp.py").write_text("staged\n")
    git(lab, "add", "exp.py")
    before = git(lab, "status", "--porcelain"), git(lab, "write-tree"), git(lab, "log", "--oneline", "--all")
    restored = restore(run, tmp_path / "clean")
    assert read_files(tmp_path / "clean" / "sub") == expected
    assert restored.script == tmp_path / "clean" / "sub" / "exp.py"
    assert restored.notes == ()
    assert (git(lab, "status", "--porcelain"), git(lab, "write-tree"), git(lab, "log", "--oneline", "--all")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "repository", "store"]


def test_changes_are_applied_within_another_repository_too(lab, record, tmp_path):
    run = record(lab, ["exp.py"])
    restored = restore(run, lab / "kept" / "here")
    assert (lab / "kept" / "here" / "sub" / "data.bin").read_bytes() == bytes(range(255))
    assert restored.notes == ()


def test_settings_of_the_user_do_not_spoil_the_recorded_changes(lab, record, tmp_path):
    for name, value in (("diff.noprefix", "true"), ("color.diff", "always"), ("diff.external", "false")):
        git(lab, "config", name, value)
    run = record(lab, ["exp.py"])
    assert restore(run, tmp_path / "clean").notes == ()
    assert (tmp_path / "clean" / "sub" / "pack" / "__init__.py").read_text() == "value = 2\n"


def test_changes_in_a_work_tree_with_other_line_ends_are_applied(lab, record, tmp_path):
    (lab / "table.txt").write_bytes(b"a\nb\n")
    git(lab, "add", "-A")
    git(lab, "commit", "-qm", "a table")
    git(lab, "config", "core.autocrlf", "true")
    (lab / "table.txt").write_bytes(b"a\r\nc\r\n")
    (lab / "new.txt").write_bytes(b"d\r\n")
    restored = restore(record(lab, ["exp.py"]), tmp_path / "clean")
    assert (tmp_path / "clean" / "sub" / "table.txt").read_bytes() == b"a\r\nc\r\n"
    assert (tmp_path / "clean" / "sub" / "new.txt").read_bytes() == b"d\r\n"
    assert restored.notes == ()


@pytest.fixture
def submodule(lab, tmp_path):
    """Add a submodule `sub/part`, which lies in a folder of its own in the repository, and return the submodule."""
    git(tmp_path, "init", "-q", "part")
    for content in (b"1", b"2"):
        (tmp_path / "part" / "weights.bin").write_bytes(content)
        git(tmp_path / "part", "add", ".")
        git(tmp_path / "part", "commit", "-qm", "weights")
    git(lab, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "part"), "part")
    git(lab, "commit", "-qm", "a submodule")
    return lab / "part"


def test_files_of_a_submodule_are_restored_as_they_were_checked_out(lab, record, submodule, tmp_path):
    git(submodule, "checkout", "-q", "HEAD~1")
    run = record(lab)
    git(submodule, "checkout", "-q", "-")
    restored = restore(run, tmp_path / "clean")
    assert (tmp_path / "clean" / "sub" / "part" / "weights.bin").read_bytes() == b"1"
    assert restored.notes == ()


def test_submodule_that_is_not_at_hand_is_told(lab, record, submodule, tmp_path):
    run = record(lab)
    shutil.rmtree(submodule)
    shutil.rmtree(lab.parent / ".git" / "modules")
    [note] = restore(run, tmp_path / "clean").notes
    assert "the submodule sub/part is restored without its commit" in note


def test_repository_is_looked_for_in_the_current_folder_last(lab, record, tmp_path, monkeypatch):
    run = record(lab)
    shutil.move(lab.parent, tmp_path / "elsewhere")
    assert restoring.find_repository(Record(run)) is None
    monkeypatch.chdir(tmp_path / "elsewhere" / "sub")
    assert restoring.find_repository(Record(run)) == tmp_path / "elsewhere" / "sub"
    assert restore(run, tmp_path / "clean").notes == ()


def test_without_a_repository_the_recorded_sources_are_restored(lab, record, tmp_path, monkeypatch):
    run = record(lab)
    shutil.rmtree(lab.parent)
    monkeypatch.chdir(tmp_path)
    restored = restore(run, tmp_path / "clean")
    assert sorted(read_files(tmp_path / "clean")) == ["exp.py", "new.py", "pack/__init__.py"]
    assert (tmp_path / "clean" / "pack" / "__init__.py").read_text() == "value = 2\n"
    assert "no repository with its commit" in restored.notes[0]
    assert "only the recorded sources" in restored.notes[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_repository_of_another_user_is_told_with_what_to_do(lab, record, tmp_path):
    run = record(lab)
    for path in (lab.parent, lab.parent / ".git"):
        os.chown(path, 65534, -1)
    [note] = restore(run, tmp_path / "clean").notes
    assert note.startswith(
        f"git refuses the repository in {lab.parent}, which belongs to another user (if you trust it"
    )
    assert note.endswith("only the recorded sources are restored, no other file of the lab")


def test_sources_of_a_run_outside_of_git_say_so(lab, record, tmp_path):
    restored = restore(record(lab, git=False), tmp_path / "clean")
    assert "made outside of git" in restored.notes[0]


def test_sources_that_git_has_otherwise_are_named_and_taken(lab, record, tmp_path):
    (lab / "exp.py").write_text("import pack  # as it ran\n")
    run = record(lab)
    state = json.loads((run.folder / "provenance.json").read_text())
    state["git"] |= {"diff": "", "untracked": {}}
    (run.folder / "provenance.json").write_text(json.dumps(state))
    restored = restore(run, tmp_path / "clean")
    assert (tmp_path / "clean" / "sub" / "exp.py").read_text() == "import pack  # as it ran\n"
    assert any("replace those of the commit" in note and "exp.py, pack/__init__.py" in note for note in restored.notes)
    assert any("are missing in the commit" in note and "new.py" in note for note in restored.notes)


def test_changes_that_cannot_be_applied_are_told(lab, record, tmp_path):
    run = record(lab)
    state = json.loads((run.folder / "provenance.json").read_text())
    state["git"]["diff"] = "no diff at all\n"
    (run.folder / "provenance.json").write_text(json.dumps(state))
    assert "cannot be applied" in restore(run, tmp_path / "clean").notes[0]


def test_source_with_another_content_is_refused(lab, record, tmp_path):
    run = record(lab)
    kept = next((tmp_path / "store" / "_sources").glob("new_*"))
    kept.write_text("tampered\n")
    with pytest.raises(LaunchError, match=r"'new\.py' has the MD5 .* damaged"):
        restore(run, tmp_path / "clean")
    kept.unlink()
    with pytest.raises(LaunchError, match=r"'new\.py' is not there"):
        restore(run, tmp_path / "again")


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "a/../../out.py"])
def test_names_that_leave_the_folder_are_refused(lab, record, tmp_path, name):
    run = record(lab)
    document = json.loads((run.folder / "run.json").read_text())
    document["experiment"]["sources"].append([name, document["experiment"]["sources"][0][1]])
    (run.folder / "run.json").write_text(json.dumps(document))
    with pytest.raises(LaunchError, match="does not stay in the folder"):
        restore(run.store.get("1"), tmp_path / "clean")
    assert not (tmp_path / "out.py").exists()


def test_links_out_of_the_commit_make_room_for_recorded_sources(lab, record, tmp_path):
    (tmp_path / "outside").mkdir()
    (lab / "link").symlink_to(tmp_path / "outside")
    git(lab, "add", "-A")
    git(lab, "commit", "-qm", "a link")
    run = record(lab)
    document = json.loads((run.folder / "run.json").read_text())
    document["experiment"]["sources"].append(["link/out.py", document["experiment"]["sources"][0][1]])
    (run.folder / "run.json").write_text(json.dumps(document))
    restored = restore(run.store.get("1"), tmp_path / "clean")
    assert (tmp_path / "clean" / "sub" / "link" / "out.py").read_text() == "import pack\n"
    assert any("links out of the lab are restored as folders" in note and "link" in note for note in restored.notes)
    assert list((tmp_path / "outside").iterdir()) == []


def test_links_within_the_commit_stay_links(lab, record, tmp_path):
    (lab / "main.py").symlink_to("exp.py")
    git(lab, "add", "main.py")
    git(lab, "commit", "-qm", "a link")
    restored = restore(record(lab, ["exp.py", "main.py"]), tmp_path / "clean")
    assert (tmp_path / "clean" / "sub" / "main.py").is_symlink()
    assert restored.notes == ()


def test_repository_below_the_folder_of_the_sources_is_restored_there(lab, record, tmp_path):
    """As of `python -m repository.sub.exp`, whose modules are named from the folder above."""
    run = record(lab)
    document = json.loads((run.folder / "run.json").read_text())
    document["experiment"] |= {"base_dir": str(tmp_path), "mainfile": "repository/sub/exp.py"}
    document["experiment"]["sources"] = [
        [f"repository/sub/{name}", kept] for name, kept in document["experiment"]["sources"]
    ]
    (run.folder / "run.json").write_text(json.dumps(document))
    restored = restore(run.store.get("1"), tmp_path / "clean")
    assert restored.script == tmp_path / "clean" / "repository" / "sub" / "exp.py"
    assert (tmp_path / "clean" / "repository" / "sub" / "data.bin").read_bytes() == bytes(range(255))
    assert restored.notes == ()


def test_run_without_sources_or_main_file_is_refused(lab, record, tmp_path):
    run = record(lab, ["new.py"])
    shutil.rmtree(lab.parent)
    with pytest.raises(LaunchError, match=r"main file exp\.py is not among"):
        restore(run, tmp_path / "clean")
    document = json.loads((run.folder / "run.json").read_text())
    document["experiment"]["sources"] = []
    (run.folder / "run.json").write_text(json.dumps(document))
    with pytest.raises(LaunchError, match="no recorded sources"):
        restore(run.store.get("1"), tmp_path / "again")


def test_sessions_of_different_sources_are_told(lab, record, tmp_path):
    run = record(lab, sessions=[{"changed_sources": []}, {"changed_sources": ["exp.py"]}])
    assert any("different sources (exp.py)" in note for note in restore(run, tmp_path / "clean").notes)
