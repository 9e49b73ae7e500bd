"""Aliases of artifacts in stores, from the code of runs, on the command line, and in reproduced runs."""

import json
import os
import re
import shlex
import sys
import threading
from pathlib import Path

import pytest

import sacristan
from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.experiments.scripts.artifact import log_artifact, use_artifact
from sacristan.observers import ArtifactError, ArtifactMovedError, ArtifactStore, FileObserver, MongoObserver
from sacristan.runs import ChangedError, RunNotFoundError, StoreError, open_store
from tests.documents import checked
from tests.folders import write_files
from tests.processes import run

KINDS = [pytest.param("folder"), pytest.param("database", marks=pytest.mark.slow)]


def record(main, *observers):
    ex = Experiment("recorded", base_dir=Path(__file__).parent, save_git_info=False, system_metrics_s=None)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"})


def log_versions(_run, folder, contents=(b"1", b"2", b"3")):
    return [_run.log_artifact("net", write_files(folder, {"net.pt": content}), "model") for content in contents]


@pytest.fixture(params=KINDS)
def where(request, tmp_path):
    """The place of a store with three versions of the artifact `net`."""
    if request.param == "folder":
        record(lambda _run: log_versions(_run, tmp_path / "in") and None, FileObserver(tmp_path / "runs"))
        return str(tmp_path / "runs")
    database, url = (request.getfixturevalue(name) for name in ("database", "mongo_url"))
    record(lambda _run: log_versions(_run, tmp_path / "in") and None, MongoObserver(url, db_name=database.name))
    return f"{url}/{database.name}"


# ---------------------------------------------------------------------- stores


def test_alias_moves_and_every_move_is_kept(where, monkeypatch):
    monkeypatch.setenv("SACRISTAN_USER", "ada")
    with open_store(where) as store:
        store.aliases.move("net", "champion", 1)
        store.aliases.move("net", "champion", 3, was="v1")
        assert store.aliases.move("net", "champion", 3).number == 2
        assert store.aliases.resolve("net:champion").version == 3
        assert store.aliases.resolve(f"net@{store.aliases.resolve('net:v1').digest[:8]}").version == 1
        store.aliases.move("net", "champion", None)
        moves = [(move.was, move.version, move.by) for move in store.aliases.moves("net")]
        assert moves == [(None, 1, "ada"), (1, 3, "ada"), (3, None, "ada")]
        assert store.aliases.of("net") == {}
        with pytest.raises(RunNotFoundError, match=r"net:champion: .* has no such alias of net"):
            store.aliases.resolve("net:champion")


def test_invalid_names_and_versions_are_refused(where):
    with open_store(where) as store:
        for alias in ("../x", "v7", "", "ü", "x" * 65, "latest"):
            with pytest.raises(StoreError, match="alias: got"):
                store.aliases.move("net", alias, 1)
        with pytest.raises(RunNotFoundError, match=r"net:v9: .* it has v1 to v3"):
            store.aliases.move("net", "champion", 9)
        with pytest.raises(RunNotFoundError, match=r"nett:v1: .* has no artifact nett; did you mean net\?"):
            store.aliases.move("nett", "champion", 1)
        with pytest.raises(StoreError, match="artifact name: got"):
            store.aliases.move("../net", "champion", 1)
        assert store.aliases.moves("net") == []


def test_second_of_two_that_move_at_once_is_told_what_it_names(where):
    with open_store(where) as one, open_store(where) as other:
        one.aliases.move("net", "champion", 1)
        stale = {"champion": other.aliases.of("net")["champion"]}
        one.aliases.move("net", "champion", 2)
        other.aliases._last = lambda _: stale
        with pytest.raises(ChangedError, match=r"net:champion names v2 since .*: another process was faster"):
            other.aliases.move("net", "champion", 3)
        assert [move.version for move in one.aliases.moves("net")] == [1, 2]


def test_many_users_at_once_lose_no_move(where):
    def move_often():
        done = 0
        with open_store(where) as store:
            while done < 10:
                now = store.aliases.of("net").get("champion")
                number = None if now is None else now.version
                try:
                    store.aliases.move("net", "champion", 1 + (number or 0) % 3, "" if number is None else number)
                    done += 1
                except ChangedError:
                    pass

    threads = [threading.Thread(target=move_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open_store(where) as store:
        moves = store.aliases.moves("net")
    assert [move.number for move in moves] == list(range(1, 31))
    assert [move.was for move in moves] == [None, *(move.version for move in moves[:-1])]


def test_command_moves_lists_and_removes(where, capsys):
    def call(*words):
        code = main(["artifacts", "alias", "--store", where, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    assert call("net") == (
        0, f"net has no aliases; to give one: sacristan --store {where} artifacts alias net latest champion\n", ""
    )  # fmt: skip
    assert call("net", "v1", "champion") == (0, "net:champion is v1, was no version\n", "")
    assert call("net", "latest", "champion", "--was", "v1")[1] == "net:champion is v3, was v1\n"
    code, out, err = call("net", "v2", "champion", "--was", "v1")
    assert (code, out) == (1, "")
    assert "net:champion names v3 since " in err
    assert call("net", "champion", "stable")[1] == "net:stable is v3, was no version\n"
    document = checked("artifacts", call("net", "--history", "--json")[1])
    assert [(move["alias"], move["version"], move["was"]) for move in document["moves"]] == [
        ("champion", 1, None),
        ("champion", 3, 1),
        ("stable", 3, None),
    ]
    assert call("net", "--remove", "stable")[1] == "net:stable is removed, was v3\n"
    assert [line.split()[:2] for line in call("net")[1].splitlines()[1:]] == [["champion", "v3"]]
    for words in (("net", "v1"), ("net", "v1", "x", "--remove", "y"), ("net", "--was", "v1")):
        with pytest.raises(SystemExit):
            call(*words)
        assert capsys.readouterr().err.startswith("error: ")


def test_versions_are_shown_and_compared_with_their_runs(tmp_path, capsys, request):
    ex = Experiment("made", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.config
    def config():
        lr = 0.1

    @ex.main
    def main_(_run, lr):
        _run.log_artifact("digits", write_files(tmp_path / "digits", {"a": b"%g" % lr}))
        _run.use_artifact("digits")
        _run.log_scalar("val/accuracy", 2 * lr, 1)
        _run.log_artifact(
            "net", write_files(tmp_path / "in", {"net.pt": b"%g" % lr, "same": b"1"}), "model", {"lr": lr}
        )
        return lr

    for lr in (0.1, 0.25):
        ex.run(config_updates={"lr": lr, "seed": 1}, options={"--capture": "sys"})
    where = str(tmp_path / "runs")

    def call(*words):
        assert main(["artifacts", *words, "--store", where]) == 0
        return capsys.readouterr().out

    call("alias", "net", "v1", "champion")
    shown = checked("artifacts", call("show", "net:champion", "--json"))
    assert (shown["version"], shown["aliases"], shown["type"]) == (1, ["champion"], "model")
    run = shown["run"]
    assert (run["id"], run["data"], run["result"]) == ("1", {"digits": "v1"}, 0.1)
    assert main(shlex.split(run["card"])[1:]) == 0  # as it can be pasted
    assert capsys.readouterr().out
    assert run["metrics"]["val/accuracy"]["max"] == 0.2
    text = call("show", "net")
    for words in ("latest", "run 2 made, COMPLETED", "data digits", "metadata.lr", "net.pt"):
        assert words in text
    compared = checked("artifacts", call("compare", "net:champion", "net:v2", "--json"))
    assert compared["config"]["changed"] == {"lr": [0.1, 0.25]}
    assert compared["data"]["changed"] == {"digits": ["v1", "v2"]}
    assert list(compared["files"]["changed"]) == ["net.pt"]
    assert compared["sizes"]["changed"] == {"net.pt": [3, 4]}
    assert compared["metrics"]["changed"]["result"] == [0.1, 0.25]
    text = call("compare", "net:champion", "net:v2")
    for words in ("net:v1", "net:v2", "lr", "0.25", "champion"):
        assert words in text
    assert "net:v1 and net:v1 have the same files" in call("compare", "net:champion", "net:v1")


def test_old_versions_are_removed_but_for_those_with_aliases(where, capsys, monkeypatch):
    monkeypatch.setenv("SACRISTAN_USER", "ada")

    def call(*words):
        code = main(["artifacts", words[0], "--store", where, *words[1:]])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    with open_store(where) as store:
        store.aliases.move("net", "champion", 1)
    code, out, err = call("rm", "net", "v1", "--yes")
    assert (code, out) == (1, "")
    assert "net:v1 is champion: move the alias to another version first, or remove it" in err
    code, _, err = call("gc", "--older-than", "0s", "--yes")
    assert code == 1
    assert "aliases name versions that are old: net:v1 (champion); leave them with --keep-aliased" in err
    assert "no version is that old" in call("gc", "--older-than", "1d", "--yes")[1]
    code, _, err = call("gc", "--older-than", "0s", "--keep-aliased")
    assert code == 1
    assert "artifacts gc removes 1 version, 1 bytes; add --yes if nobody can be asked" in err
    for path in Path(where).glob("_artifacts/contents/**/*"):
        os.utime(path, (0, 0))
    document = checked("artifacts", call("gc", "--older-than", "0s", "--keep-aliased", "--yes", "--json")[1])
    assert document["versions"] == ["net:v2"]
    if Path(where).is_dir():
        assert (document["contents"], document["bytes"]) == (1, 1)
        assert (Path(where) / "_artifacts/versions/net/removed/v2.json").is_file()
    code, _, err = call("show", "net:v2")
    assert code == 1
    assert "it has v1 to v3; ada removed v2 on 20" in err
    assert re.search(r"v2 removed +20.* UTC, by ada", call("show", "net")[1])
    [gone] = checked("artifacts", call("show", "net", "--json")[1])["removed"]
    assert (gone["version"], gone["by"]) == (2, "ada")
    with open_store(where) as store:
        assert [version.version for version in store.artifact_versions("net")] == [1, 3]
        with pytest.raises(RunNotFoundError, match=r"net:v2: .* has no such version"):
            store.aliases.move("net", "champion", 2)
    with pytest.raises(SystemExit):
        call("gc", "--older-than", "old")


def test_version_that_no_run_logged_is_as_old_as_itself(tmp_path, capsys):
    for content in (b"1", b"2"):
        ArtifactStore(tmp_path / "runs").log("net", write_files(tmp_path / "in", {"net.pt": content}))
    for age, said in (("1d", "no version is that old"), ("0s", "removed net:v1")):
        main(["artifacts", "gc", "--store", str(tmp_path / "runs"), "--older-than", age, "--yes"])
        assert said in capsys.readouterr().out


def test_alias_of_a_version_that_is_removed_at_the_same_time_is_refused(where):
    with open_store(where) as store, open_store(where) as other:
        store.aliases.move("net", "champion", 1)
        change = store.backend.documents.change

        def after_the_removal(kind, name, written, owner=""):
            now = store.backend.artifact_versions
            store.backend.documents.change = change
            store.backend.artifact_versions = lambda name, version=None: found if version == 2 else now(name, version)
            found = now("net", 2)
            other.aliases.remove_versions(found)
            done = change(kind, name, written, owner)
            store.backend.artifact_versions = now
            return done

        store.backend.documents.change = after_the_removal
        with pytest.raises(ChangedError, match="net:v2 has just been removed; net:champion names what it named before"):
            store.aliases.move("net", "champion", 2)
        assert store.aliases.resolve("net:champion").version == 1


# ---------------------------------------------------------------------- runs


def test_code_of_a_run_moves_an_alias_where_it_is_recorded(tmp_path):
    def moves(_run):
        first, second, _ = log_versions(_run, tmp_path / "in")
        first.alias("best")
        second.alias("best", was="v1")
        with pytest.raises(ArtifactMovedError, match="net:best names v2"):
            first.alias("best", was="v1")
        assert _run.use_artifact("net:best").version == 2

    done = record(moves, FileObserver(tmp_path / "a"), FileObserver(tmp_path / "b"))
    for folder in ("a", "b"):
        store = ArtifactStore(tmp_path / folder)
        assert [move.run for move in store.alias_moves("net")] == [done.meta_info["uid"]] * 2
        assert store.resolve("net:best").version == 2
        entry = json.loads((tmp_path / folder / "1" / "run.json").read_text())
        assert [one["alias"] for one in entry["artifacts_aliased"]] == ["best", "best"]
        [used] = entry["artifacts_used"]
        assert (used["version"], used["reference"]) == (2, "net:best")


def test_run_in_a_database_alone_moves_the_alias_there(tmp_path, database, mongo_url):
    observer = lambda: MongoObserver(mongo_url, db_name=database.name)  # noqa: E731

    def moves(_run):
        first, second, _ = log_versions(_run, tmp_path / "in")
        first.alias("best")
        second.alias("best")
        with pytest.raises(ArtifactError, match="recorded in a database alone"):
            first.alias("best", was="v1")

    done = record(moves, observer())
    with open_store(f"{mongo_url}/{database.name}") as store:
        assert [(move.was, move.version, move.run) for move in store.aliases.moves("net")] == [
            (None, 1, done.meta_info["uid"]),
            (1, 2, done.meta_info["uid"]),
        ]
        store.aliases.move("net", "best", 3)

    def uses(_run):
        assert _run.use_artifact("net:best").path(tmp_path / "out").read_bytes() == b"3"
        with pytest.raises(ArtifactError, match="net:worst"):
            _run.use_artifact("net:worst")

    record(uses, observer())
    assert database.runs.find_one({"_id": 2})["artifacts_used"][0]["reference"] == "net:best"


@pytest.mark.parametrize("kind", KINDS)
def test_aliases_of_an_artifact_in_a_script_are_those_of_its_store(tmp_path, request, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if kind == "folder":
        url = where = str(tmp_path / "runs")
    else:
        url = request.getfixturevalue("mongo_url")
        where = f"{url}/{request.getfixturevalue('database').name}"

    def observer():
        return FileObserver(where) if kind == "folder" else MongoObserver(url, db_name=where.rpartition("/")[2])

    record(lambda _run: log_versions(_run, tmp_path / "in") and None, observer())
    with open_store(where) as store:
        for alias, version in (("champion", 3), ("old", 3), ("first", 1)):
            store.aliases.move("net", alias, version)

    def script(_run):
        used = use_artifact(_run, "lab/net:v3")
        assert used.aliases == ["latest", "champion", "old"]
        used.aliases.append("best")
        used.aliases.remove("old")
        used.save()
        assert used.aliases == ["latest", "best", "champion"]
        assert use_artifact(_run, "net:v1").aliases == ["first"]
        path = write_files(tmp_path / "in", {"net.pt": b"4"}) / "net.pt"
        made = log_artifact(_run, path, "net", "model", ["champion"], None)
        assert made.aliases == ["latest", "champion"]
        assert use_artifact(_run, "net:v2").aliases == []

    done = record(script, observer())
    with open_store(where) as store:
        assert {alias: move.version for alias, move in store.aliases.of("net").items()} == {
            "best": 3,
            "champion": 4,
            "first": 1,
        }
        moves = [(move.alias, move.version) for move in store.aliases.moves("net") if move.run]
        assert moves == [("best", 3), ("old", None), ("champion", 4)]
        assert {move.run for move in store.aliases.moves("net")} == {None, done.meta_info["uid"]}


def test_move_of_a_run_is_delivered_once_and_not_over_a_later_one(tmp_path, database, mongo_url, caplog):
    url = f"{mongo_url}/{database.name}"
    record(
        lambda _run: log_versions(_run, tmp_path / "in")[0].alias("best"),
        FileObserver(tmp_path / "runs"),
        MongoObserver(mongo_url, db_name=database.name),
    )
    with open_store(url) as store:
        store.aliases.move("net", "best", 2)
    for _ in range(2):
        assert main(["sync", "--store", str(tmp_path / "runs")]) == 0
    with open_store(url) as store:
        assert [move.version for move in store.aliases.moves("net")] == [1, 2]


def test_alias_names_one_version_for_the_whole_run(tmp_path):
    store = ArtifactStore(tmp_path / "runs")
    record(lambda _run: log_versions(_run, tmp_path / "in") and None, FileObserver(tmp_path / "runs"))
    store.alias("net", "champion", 1)

    def uses(_run):
        assert _run.use_artifact("net:champion").version == 1
        store.alias("net", "champion", 2)
        assert _run.use_artifact("net:champion").version == 1
        _run.use_artifact("net:v3").alias("champion")
        assert _run.use_artifact("net:champion").version == 3

    record(uses, FileObserver(tmp_path / "runs"))


USES = """
from sacristan.experiments import Experiment
from sacristan.observers import file_observer

ex = Experiment("uses", system_metrics_s=None, save_git_info=False)
ex.observers.append(file_observer("my_runs"))


@ex.automain
def main(_run):
    return [_run.use_artifact(name).path(name).read_text() for name in ("net:champion", "net:latest")]
"""


def test_reproduced_run_gets_the_versions_that_the_aliases_named_then(tmp_path):
    (tmp_path / "uses.py").write_text(USES)
    store = ArtifactStore(tmp_path / "my_runs")
    for content in (b"1", b"2"):
        store.log("net", write_files(tmp_path / "in", {"net.pt": content}), "model")
    store.alias("net", "champion", 1)
    run([sys.executable, "uses.py"], cwd=tmp_path, check=True, capture_output=True)
    store.alias("net", "champion", 2)
    store.log("net", write_files(tmp_path / "in", {"net.pt": b"3"}), "model")
    done = run(
        [sys.executable, "-m", "sacristan", "reproduce", "1"], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "net:champion is v1, as in run 1; it names v2 now" in done.stdout + done.stderr
    assert "net:latest is v2, as in run 1; it names v3 now" in done.stdout + done.stderr
    results = [json.loads((tmp_path / "my_runs" / id / "run.json").read_text())["result"] for id in ("1", "2")]
    assert results == [["1", "2"], ["1", "2"]]


def test_names_of_wandb_give_aliases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.pt").write_text("1")
    with sacristan.init() as tracked:
        first = tracked.log_artifact("net.pt", name="net", type="model", aliases=["best", "latest", "epoch_1"])
        assert first.aliases == ["latest", "best", "epoch_1"]
        Path("net.pt").write_text("2")
        second = tracked.log_model("net.pt", "net", aliases="best")
        assert (first.name, second.name) == ("net:v1", "net:v2")
        assert tracked.use_artifact("me/project/net:best").version == "v2"
        used = tracked.use_artifact("net:epoch_1")
        assert used.aliases == ["epoch_1"]
        used.aliases.append("stable")
        used.aliases.remove("epoch_1")
        used.save()
        assert used.aliases == ["stable"]
    assert list(ArtifactStore("my_runs").aliases("net")) == ["best", "stable"]


def test_alias_of_wandb_that_is_none_here_ends_no_training(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    Path("net.pt").write_text("1")
    with sacristan.init() as tracked:
        tracked.log_artifact("net.pt", name="net", type="model", aliases=["v3", "of the day"])
    assert "net:v1 keeps no alias 'v3'" in caplog.text
    assert "net:v1 keeps no alias 'of the day'" in caplog.text
    assert ArtifactStore("my_runs").aliases("net") == {}
