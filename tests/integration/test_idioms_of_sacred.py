"""The idioms of Sacred's public examples and guide, each under stock Sacred and under the lab.

`@idiom` names the rows of the table in `docs/from_sacred.md` that a test stands for: it passes under both, or, if the
row says that the idiom differs, returns another outcome under each.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import sqlite3
import types
from pathlib import Path

import numpy as np
import pymongo
import pytest
import sacred
from sacred.commandline_options import cli_option
from sacred.observers import (
    FileStorageObserver,
    MongoObserver,
    QueuedMongoObserver,
    RunObserver,
    SlackObserver,
    SqlObserver,
)
from sacred.utils import (
    ConfigAddedError,
    InvalidConfigError,
    MissingConfigError,
    NamedConfigNotFoundError,
    SacredError,
    apply_backspaces_and_linefeeds,
)

from sacristan import experiments, ingredients, observers

# Before the fixture for all tests sets it to None.
RECORD_TO = experiments.Experiment.__init__.__kwdefaults__["record_to"]
PAGE = Path(__file__).parents[2] / "docs" / "from_sacred.md"
LABS = {
    "sacred": types.SimpleNamespace(
        name="sacred",
        Experiment=sacred.Experiment,
        Ingredient=sacred.Ingredient,
        FileStorageObserver=FileStorageObserver,
        MongoObserver=MongoObserver,
    ),
    "sacristan": types.SimpleNamespace(
        name="sacristan",
        Experiment=experiments.Experiment,
        Ingredient=ingredients.Ingredient,
        FileStorageObserver=observers.FileObserver,
        MongoObserver=observers.MongoObserver,
    ),
}
# Whether an idiom has one outcome under both, by its name in the table.
IDIOMS: dict[str, bool] = {}


def idiom(*names, sacred=None, sacristan=None):
    """Say which rows of the table a test stands for; with two outcomes, that it returns these."""
    differs = sacred != sacristan
    IDIOMS.update(dict.fromkeys(names, not differs))

    def decorate(test):
        @functools.wraps(test)
        def differing(lab, **fixtures):
            assert test(lab=lab, **fixtures) == (sacred if lab.name == "sacred" else sacristan)

        return differing if differs else test

    return decorate


@pytest.fixture(params=LABS)
def lab(request, tmp_path, monkeypatch):
    """Stock Sacred, and the lab: what a script imports."""
    monkeypatch.chdir(tmp_path)
    return LABS[request.param]


@pytest.fixture
def make(lab):
    """Return what makes an experiment."""

    def make(parts=(), **options):
        return lab.Experiment("study", ingredients=parts, save_git_info=False, **options)

    return make


def typed(ex, *words):
    """Run a command line, and return the run."""
    return ex.run_commandline(["study.py", *words])


# Configuration


@idiom("`add_config` with a dict, or keywords")
def test_entries_of_a_dict_and_keywords_reach_main(make):
    ex = make()
    ex.add_config({"tea": "green"})
    ex.add_config(cups=2)
    ex.main(lambda tea, cups: f"{cups} {tea}")
    assert typed(ex).result == "2 green"
    assert typed(ex, "with", "tea=black", "cups=3").result == "3 black"


@idiom("`add_config` with a file")
def test_entries_of_a_file_reach_main(make, tmp_path):
    ex = make()
    (tmp_path / "tea.json").write_text('{"tea": "green", "pot": {"size": 3}}')
    ex.add_config("tea.json")
    ex.main(lambda tea, pot: (tea, pot["size"]))
    assert typed(ex, "with", "pot.size=4").result == ("green", 4)


def test_entries_of_a_scope_depend_on_each_other(make):
    ex = make()

    @ex.config
    def brewing():
        # how many drink
        guests = 3
        # ml in all
        water = guests * 200

    ex.main(lambda water: water)
    assert typed(ex).result == 600
    assert typed(ex, "with", "guests=5").result == 1000
    assert typed(ex, "with", "water=1").result == 1


@idiom("several `@ex.config`")
def test_scope_builds_on_the_one_before(make):
    ex = make()

    @ex.config
    def first():
        guests = 3
        pot = {"size": 1, "colour": "blue"}

    @ex.config
    def second(guests, pot):
        pot["size"] = guests * 2
        cups = guests + 1

    ex.main(lambda cups, pot: (cups, pot["size"], pot["colour"]))
    assert typed(ex, "with", "guests=4").result == (5, 8, "blue")


@idiom("`@ex.named_config`, `print_named_configs`")
def test_named_config_changes_what_follows_from_it(make, capsys):
    ex = make()

    @ex.named_config
    def party():
        """Many guests."""
        guests = 30

    @ex.config
    def brewing():
        guests = 3
        water = guests * 200

    ex.main(lambda water: water)
    assert typed(ex, "with", "party").result == 6000
    assert typed(ex, "with", "party", "guests=31").result == 6200
    typed(ex, "print_named_configs")
    assert "Many guests" in capsys.readouterr().out


@idiom("`add_named_config` with a dict, or a file")
def test_named_config_of_a_dict_or_file_is_used_from_python(make):
    ex = make()
    ex.add_config(guests=3)
    ex.add_named_config("party", {"guests": 30})
    Path("feast.json").write_text('{"guests": 300}')
    ex.add_named_config("feast", "feast.json")
    ex.main(lambda guests: guests)
    assert typed(ex, "with", "feast").result == 300
    assert ex.run(named_configs=["party"]).result == 30
    assert ex.run(config_updates={"guests": 4}, named_configs=["party"]).result == 4


@idiom("`@ex.config_hook`")
def test_config_hook_changes_the_config(make):
    ex = make()
    ex.add_config(guests=3, water=None)

    @ex.config_hook
    def fill_in(config, command_name, logger):
        config.update({"water": config["guests"] * 200, "for": command_name})
        return config

    @ex.main
    def brew(_config):
        return _config["water"], _config["for"]

    assert typed(ex, "with", "guests=2").result == (400, "brew")
    assert typed(ex, "with", "water=7").result == (7, "brew")


@idiom("classes and functions as settings")
def test_class_and_function_are_entries(make):
    ex = make()

    @ex.config
    def choosing():
        kind = dict
        scale = np.sqrt
        offset = lambda x: x + 1  # noqa: E731

    ex.main(lambda kind, scale, offset: (kind(), scale(4.0), offset(1)))
    assert typed(ex).result == ({}, 2.0, 2)


@idiom("`SETTINGS.CONFIG.READ_ONLY_CONFIG = False`")
def test_config_is_writable_where_the_settings_say_so(make, monkeypatch):
    monkeypatch.setitem(sacred.SETTINGS.CONFIG, "READ_ONLY_CONFIG", False)
    ex = make()
    ex.add_config(pot={"size": 1})

    @ex.capture
    def enlarge(pot):
        pot["size"] += 1

    @ex.main
    def brew(pot):
        enlarge()
        return pot["size"]

    assert typed(ex).result == 2


@idiom("`raise InvalidConfigError`")
def test_config_that_makes_no_sense_is_refused_by_the_experiment(make):
    ex = make()
    ex.add_config(guests=3, cups=2)

    @ex.main
    def brew(guests, cups):
        if cups < guests:
            raise InvalidConfigError("too few", conflicting_configs=("cups", "guests"))

    with pytest.raises(InvalidConfigError, match=r"too few[^=]*cups=2\s*guests=3"):
        ex.run()


# Captured functions


@idiom("`@ex.capture`, with `prefix`")
def test_captured_function_is_filled_from_the_config_unless_told(make):
    ex = make()
    ex.add_config(tea="green", pot={"size": 3})

    @ex.capture
    def describe(tea, note="plain"):
        return f"{tea} {note}"

    @ex.capture(prefix="pot")
    def volume(size):
        return size

    ex.main(lambda: (describe(), describe("mint"), describe(note="sweet"), volume(), volume(size=9)))
    assert typed(ex, "with", "note=hot").result == ("green hot", "mint hot", "green sweet", 3, 9)


@idiom("an argument that only the command line gives")
def test_required_argument_comes_from_the_command_line(make):
    ex = make()
    pour = ex.capture(lambda cup: f"into the {cup}")
    ex.main(lambda: pour())
    assert typed(ex, "with", "cup=red").result == "into the red"


@idiom("`_rnd`, `_seed`")
def test_random_numbers_follow_from_the_seed_and_the_calls(make):
    ex = make()
    ex.add_config(count=1, reverse=False)

    @ex.capture
    def draw(count, _rnd):
        return [float(_rnd.random()) for _ in range(count)]

    @ex.capture
    def draw_seed(_seed):
        return _seed

    @ex.main
    def main(reverse):
        seed = draw_seed() if reverse else None
        first, second = draw(), draw()
        return first, second, draw_seed() if seed is None else seed

    one = typed(ex, "with", "seed=5").result
    assert typed(ex, "with", "seed=5").result == one
    assert typed(ex, "with", "seed=6").result != one
    assert typed(ex, "with", "seed=5", "reverse=True").result == one
    more = typed(ex, "with", "seed=5", "count=3").result
    assert [numbers[:1] for numbers in more[:2]] == list(one[:2])
    assert one[0] != one[1]


@idiom("`random` and `numpy.random`, seeded by `seed`")
def test_global_streams_are_seeded(make):
    ex = make()
    ex.add_config(seed=42)
    ex.main(lambda: float(np.random.random()))
    assert ex.run().result == ex.run().result == typed(ex, "with", "seed=42").result


# Commands


@idiom("`@ex.command`, `unobserved`, `help`")
def test_commands_are_run_by_name_and_explained(make, capsys):
    ex = make()
    ex.add_config(name="Ann")

    @ex.command
    def greet(name):
        """Say good day.

        To whom the config names.
        """
        return f"good day {name}"

    @ex.command(unobserved=True)
    def nap():
        """Do nothing."""
        return "zzz"

    @ex.main
    def work():
        return "work"

    assert typed(ex, "greet", "with", "name=Bea").result == "good day Bea"
    assert (typed(ex, "nap").result, typed(ex, "work").result, typed(ex).result) == ("zzz", "work", "work")
    for words in ["help"], ["help", "greet"]:
        with pytest.raises(SystemExit):
            typed(ex, *words)
        assert "Say good day." in capsys.readouterr().out


@idiom("`print_config`, `save_config`")
def test_print_config_and_save_config_show_the_config(make, capsys, tmp_path):
    ex = make()
    ex.add_config(name="Ann", pot={"size": 3})
    ex.main(lambda name: name)
    typed(ex, "print_config", "with", "pot.size=4")
    shown = capsys.readouterr().out
    assert "name = 'Ann'" in shown
    assert "size = 4" in shown
    typed(ex, "save_config", "with", "name=Bea", "config_filename=mine.json")
    assert json.loads((tmp_path / "mine.json").read_text())["name"] == "Bea"
    assert typed(ex, "with", "mine.json").result == "Bea"


@idiom("`@ex.option_hook`, `@cli_option`")
def test_options_of_ones_own_and_hooks_of_options(make):
    heard = []

    @cli_option("-z", "--zeal", is_flag=True)
    def zeal(args, run):
        """Work harder."""
        run.info["zeal"] = args

    ex = make(additional_cli_options=[zeal])

    @ex.option_hook
    def listen(options):
        heard.append(options["--zeal"])

    ex.main(lambda _run: _run.info.get("zeal"))
    assert (typed(ex, "-z").result, typed(ex, "--zeal").result, typed(ex).result) == (True, True, None)
    assert heard == [True, True, False]


# Ingredients


@pytest.fixture
def kitchen(lab):
    """Ingredients in ingredients, with dotted paths."""
    shelf = lab.Ingredient("kitchen.shelf", save_git_info=False)
    kitchen = lab.Ingredient("kitchen", ingredients=[shelf], save_git_info=False)

    @shelf.config
    def of_the_shelf():
        base = "up"

    @kitchen.config
    def of_the_kitchen(shelf):
        tea = "green"
        where = shelf["base"] + "stairs"

    @kitchen.config
    def later():
        tea = "mint"

    @kitchen.named_config
    def cellar():
        where = "down"

    @kitchen.capture
    def fetch(tea, where, shelf):
        return tea, where, shelf["base"]

    @kitchen.command
    def count(tea, cups=12):
        """Count the cups."""
        return tea, cups

    kitchen.take = fetch
    return kitchen


@idiom("ingredients of ingredients, their commands and named configs")
def test_ingredients_bring_config_functions_and_commands(make, kitchen):
    ex = make([kitchen])

    @ex.config
    def mine(kitchen):
        label = kitchen["tea"].upper()

    ex.main(lambda label, kitchen, fetch=kitchen.take: (label, fetch(), kitchen["where"]))
    assert typed(ex).result == ("MINT", ("mint", "upstairs", "up"), "upstairs")
    assert typed(ex, "with", "kitchen.shelf.base=down").result[1] == ("mint", "downstairs", "down")
    assert typed(ex, "with", "kitchen.cellar", "kitchen.tea=x").result == ("X", ("x", "down", "up"), "down")
    assert typed(ex, "kitchen.count", "with", "kitchen.cups=3").result == ("mint", 3)


@idiom("`pre_run_hook`, `post_run_hook`")
def test_hooks_run_before_and_after_main(make, lab):
    done = []
    part = lab.Ingredient("part", save_git_info=False)
    part.add_config(level=1)
    part.pre_run_hook(lambda level: done.append(("before", level)))
    part.post_run_hook(lambda: done.append("after"))
    ex = make([part])
    ex.pre_run_hook(lambda _run: done.append(_run.config["part"]["level"]))
    ex.main(lambda: done.append("main"))
    typed(ex, "with", "part.level=2")
    assert done == [("before", 2), 2, "main", "after"]


@pytest.mark.sampled(1)
def test_stock_ingredient_is_part_of_an_experiment_of_either(make):
    part = sacred.Ingredient("part", save_git_info=False)
    part.add_config(level=1)
    double = part.capture(lambda level: 2 * level)
    ex = make([part])
    ex.main(lambda: double())
    assert typed(ex, "with", "part.level=3").result == 6


# Logging and output


@idiom("`ex.logger`, `_log`")
def test_logger_of_ones_own_reaches_captured_functions(make):
    lines = []
    logger = logging.getLogger("idioms")
    logger.setLevel("INFO")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.levelname, record.getMessage()))
    logger.addHandler(handler)
    ex = make()
    ex.logger = logger

    @ex.capture
    def brew(_log):
        _log.warning("no water")

    @ex.main
    def main(_log):
        _log.info("brewing")
        brew()

    typed(ex)
    assert [line for line in lines if line[1] in ("brewing", "no water")] == [
        ("INFO", "brewing"),
        ("WARNING", "no water"),
    ]


@idiom("`captured_out_filter`")
def test_filter_of_output_changes_what_is_kept(make, lab, tmp_path):
    ex = make()
    ex.observers.append(lab.FileStorageObserver(tmp_path / "runs"))
    ex.captured_out_filter = apply_backspaces_and_linefeeds

    @ex.main
    def main():
        print("done 1 of 2\rdone 2 of 2")

    assert typed(ex, "--capture=sys").captured_out == "done 2 of 2\n"
    assert (tmp_path / "runs" / "1" / "cout.txt").read_text() == "done 2 of 2\n"


# What is recorded


@idiom("`log_scalar`, `info`", "`open_resource`, `add_artifact`, `add_source_file`")
def test_metrics_info_files_and_sources_are_recorded(make, lab, tmp_path):
    ex = make(base_dir=tmp_path)
    ex.observers.append(lab.FileStorageObserver(tmp_path / "runs"))
    (tmp_path / "in.txt").write_text("in")
    (tmp_path / "extra.py").write_text("pass")
    ex.add_source_file(str(tmp_path / "extra.py"))
    ex.add_package_dependency("teapot", "1.2.3")

    @ex.main
    def main(_run):
        with ex.open_resource("in.txt") as stream:
            text = stream.read()
        for step in range(3):
            _run.log_scalar("loss", 1.0 / (step + 1), step)
            ex.log_scalar("counted", step)
        _run.info["note"] = text
        ex.info["more"] = [1, 2]
        (tmp_path / "out.txt").write_text("out")
        ex.add_artifact("out.txt", "renamed.txt")
        return 0.5

    run = typed(ex, "-c", "a comment")
    assert (run.status, run.result, run.info) == ("COMPLETED", 0.5, {"note": "in", "more": [1, 2]})
    folder = tmp_path / "runs" / "1"
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["result"], record["meta"]["comment"]) == ("COMPLETED", 0.5, "a comment")
    assert record["artifacts"] == ["renamed.txt"]
    assert [Path(path).name for path, _ in record["resources"]] == ["in.txt"]
    assert "extra.py" in {Path(path).name for path, _ in record["experiment"]["sources"]}
    assert "teapot==1.2.3" in record["experiment"]["dependencies"]
    metrics = json.loads((folder / "metrics.json").read_text())
    assert (metrics["loss"]["steps"], metrics["counted"]["steps"]) == ([0, 1, 2], [0, 1, 2])
    assert metrics["counted"]["values"] == [0, 1, 2]
    assert json.loads((folder / "info.json").read_text()).items() >= run.info.items()
    assert (folder / "renamed.txt").read_text() == "out"


@idiom("`_run._metrics.get_last_metrics()`")
def test_points_since_the_last_call_are_read_in_the_run(make):
    ex = make()

    @ex.main
    def main(_run):
        assert _run._metrics.get_last_metrics() == []
        for step in 10, 15:
            _run.log_scalar("loss", step * step, step)
        ex.log_scalar("counted", 0.5)
        entries = _run._metrics.get_last_metrics()
        assert _run._metrics.get_last_metrics() == []
        assert entries[0].timestamp <= entries[1].timestamp
        return [(entry.name, entry.step, entry.value) for entry in entries]

    assert typed(ex).result == [("loss", 10, 100), ("loss", 15, 225), ("counted", 0, 0.5)]


def test_run_that_fails_says_so(make, lab, tmp_path):
    ex = make()
    ex.observers.append(lab.FileStorageObserver(tmp_path / "runs"))

    @ex.main
    def main():
        raise ValueError("no water")

    with pytest.raises(ValueError, match="no water"):
        ex.run()
    record = json.loads((tmp_path / "runs" / "1" / "run.json").read_text())
    assert record["status"] == "FAILED"
    assert "no water" in record["fail_trace"][-1]


@idiom("your own `RunObserver`")
def test_observer_of_ones_own_hears_of_the_run(make):
    class Listener(RunObserver):
        heard = ()

        def started_event(self, ex_info, command, host_info, start_time, config, meta_info, _id):
            self.heard += ("started", command, config["tea"])
            return "an-id"

        def completed_event(self, stop_time, result):
            self.heard += ("completed", result)

    ex = make()
    ex.observers.append(listener := Listener())
    ex.add_config(tea="green")

    @ex.main
    def brew(tea):
        return tea

    assert typed(ex)._id == "an-id"
    assert listener.heard == ("started", "brew", "green", "completed", "green")


# Further rows of the table


@idiom("captured methods")
def test_captured_method_keeps_its_object(make):
    ex = make()
    ex.add_config(cups=2)

    class Pot:
        size = 3

        @ex.capture
        def pour(self, cups, times=1):
            return self.size * cups * times

        @staticmethod
        @ex.capture
        def count(cups):
            return cups

    ex.main(lambda: (Pot().pour(), Pot().pour(times=4), Pot.count()))
    assert typed(ex, "with", "cups=5").result == (15, 60, 5)


@idiom("an experiment as an ingredient of another")
def test_experiment_is_part_of_another(lab, make):
    inner = lab.Experiment("inner", save_git_info=False)
    inner.add_config(level=1)
    double = inner.capture(lambda level: 2 * level)
    inner.main(lambda level: level)
    ex = make([inner])
    ex.main(lambda inner: (inner["level"], double()))
    assert typed(ex, "with", "inner.level=3").result == (3, 6)
    assert inner.run().result == 1


@idiom("`ex.run` in a run: another experiment, or a command")
def test_run_starts_another(lab, make):
    inner, ex = lab.Experiment("inner", save_git_info=False), make()
    inner.add_config(level=1)
    inner.main(lambda level: level + 1)

    @ex.command
    def pour():
        return "poured"

    ex.main(lambda: (inner.run(config_updates={"level": 5}).result, ex.run("pour").result))
    assert typed(ex).result == (6, "poured")


@idiom("`ex.run` in a run, with one observer for both", sacred=1, sacristan="ConcurrentRunError")
def test_run_starts_another_with_the_same_observer(lab, make):
    observer = lab.FileStorageObserver("runs")
    inner, ex = lab.Experiment("inner", save_git_info=False), make()
    for each in inner, ex:
        each.observers.append(observer)
    inner.main(lambda: 1)
    ex.main(lambda: inner.run().result)
    return outcome_of(ex.run)


def outcome_of(call):
    """Return the result of a run; the name of the error, or the exit code, if it fails."""
    try:
        return call().result
    except SystemExit as error:
        return f"exit code {error.code}"
    except Exception as error:
        return type(error).__name__


@idiom("`interactive=True`")
def test_experiment_of_a_notebook_runs(lab):
    ex = lab.Experiment("study", interactive=True, save_git_info=False)
    ex.main(lambda: 3)
    assert ex.run().result == 3


@idiom("`SETTINGS.CAPTURE_MODE`")
def test_output_is_captured_as_the_settings_say(make, monkeypatch):
    monkeypatch.setattr(sacred.SETTINGS, "CAPTURE_MODE", "no")
    ex = make()
    ex.main(lambda: print("brewing"))
    assert ex.run().captured_out == ""


@idiom("`except ConfigAddedError`, `NamedConfigNotFoundError`, `MissingConfigError`")
def test_errors_of_sacred_are_caught(make):
    ex = make()
    ex.main(lambda needed: needed)
    with pytest.raises(ConfigAddedError):
        ex.run(config_updates={"needed": 1, "spare": 2})
    with pytest.raises(NamedConfigNotFoundError):
        ex.run(named_configs=["nowhere"])
    with pytest.raises(MissingConfigError):
        ex.run()


@idiom("`-c TEXT`, `-n NAME`, `-P NUMBER`, `-b SECONDS`, `-l LEVEL`, `-d`, `-D`, `-p`")
def test_options_reach_the_run(make, capsys):
    ex = make()
    ex.add_config(cups=1)

    @ex.main
    def brew(_run, _log, cups):
        meta = _run.meta_info
        level = _log.getEffectiveLevel()
        return meta["comment"], _run.experiment_info["name"], meta["priority"], _run.beat_interval, level, _run.debug

    run = typed(ex, *["-c", "hot", "-n", "tea", "-P", "3", "-b", "7", "-l", "ERROR", "-d", "-p", "with", "cups=2"])
    assert run.result == ("hot", "tea", 3.0, 7.0, logging.ERROR, True)
    assert "cups = 2" in capsys.readouterr().out
    assert typed(ex, *["-D", "-c", "x", "-P", "1"]).pdb


@idiom("`-F FOLDER`, `-i ID`, `-u`")
def test_options_say_where_a_run_is_recorded(make):
    ex = make()
    ex.main(lambda _run: _run._id)
    assert typed(ex, "-F", "runs").result == "1"
    assert typed(ex, "-F", "runs", "-i", "seven").result == "seven"
    assert typed(ex, "-F", "runs", "-u").result is None
    assert {path.name for path in Path("runs").iterdir()} >= {"1", "seven"}
    assert not Path("runs", "2").exists()


@pytest.fixture
def database(lab, mongo_url):
    """An empty database of a real server."""
    with pymongo.MongoClient(mongo_url) as client:
        yield client[f"idioms_{lab.name}"]
        client.drop_database(f"idioms_{lab.name}")


@idiom("`-m HOST:PORT:NAME`, `MongoObserver`; `-q`")
def test_database_has_the_run(lab, make, database, mongo_url):
    ex = make()
    ex.add_config(cups=2)
    ex.main(lambda _run, cups: _run.log_scalar("cups", cups, 1))
    typed(ex, "-m", f"{mongo_url.removeprefix('mongodb://').rstrip('/')}:{database.name}", "with", "cups=3")
    with pymongo.MongoClient(mongo_url) as client:
        ex.observers.append(lab.MongoObserver(client=client, db_name=database.name))
        typed(ex, "-q")
    kept = [(run["status"], run["config"]["cups"]) for run in database.runs.find(sort=[("_id", 1)])]
    assert kept == [("COMPLETED", 3), ("QUEUED", 2)]


@idiom("`-q` with a `FileStorageObserver`", sacred="exit code 1", sacristan=None)
def test_run_is_queued_in_a_folder(lab, make):
    ex = make()
    ex.observers.append(lab.FileStorageObserver("runs"))
    ex.main(lambda: 1)
    return outcome_of(lambda: typed(ex, "-q"))


@idiom("`QueuedMongoObserver`")
def test_queue_sends_the_run_to_the_database(make, database, mongo_url):
    with pymongo.MongoClient(mongo_url) as client:
        ex = make()
        ex.observers.append(
            QueuedMongoObserver(interval=0.01, retry_interval=0.01, client=client, db_name=database.name)
        )
        ex.main(lambda _run: _run.log_scalar("cups", 2, 1))
        ex.run()
    assert database.runs.find_one()["status"] == "COMPLETED"
    assert database.metrics.find_one()["values"] == [2]


@idiom("`SqlObserver`")
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning", "ignore::sqlalchemy.exc.SAWarning")
def test_sqlite_has_the_run(make):
    ex = make()
    ex.observers.append(SqlObserver("sqlite:///runs.db"))
    ex.main(lambda: 1)
    ex.run()
    with contextlib.closing(sqlite3.connect("runs.db")) as connection:
        assert connection.execute("select status, result from run").fetchall() == [("COMPLETED", 1.0)]


@idiom("`SlackObserver`, where nobody answers")
def test_notification_that_is_not_delivered_costs_nothing(make):
    ex = make()
    ex.observers.append(SlackObserver("http://127.0.0.1:1/hook"))
    ex.main(lambda: 1)
    assert ex.run().status == "COMPLETED"


# Rows that differ


@idiom("no observer", sacred=[], sacristan=["my_runs"])
def test_run_without_an_observer(lab, make, monkeypatch):
    monkeypatch.setitem(experiments.Experiment.__init__.__kwdefaults__, "record_to", RECORD_TO)
    ex = make()
    ex.main(lambda: 1)
    ex.run()
    return [path.name for path in Path().iterdir()]


@idiom("the heartbeat without `-b`", sacred=10.0, sacristan=1.0)
def test_heartbeat_by_default(lab, make):
    ex = make()
    ex.main(lambda _run: _run.beat_interval)
    return ex.run().result


@idiom("`with n=1e6`, where the default is an int", sacred="1000000.0", sacristan="1000000")
def test_whole_float_for_an_int(lab, make):
    ex = make()
    ex.add_config(n=3)
    ex.main(lambda n: repr(n))
    return typed(ex, "with", "n=1e6").result


@idiom("`with lr=abc`, where the default is a number", sacred="abc", sacristan="exit code 1")
def test_word_for_a_number(lab, make):
    ex = make()
    ex.add_config(lr=0.1)
    ex.main(lambda lr: lr)
    return outcome_of(lambda: typed(ex, "with", "lr=abc"))


@idiom("`with pot.sise=2`, a key that the dict `pot` lacks", sacred=2, sacristan="exit code 1")
def test_unknown_key_of_a_dict(lab, make):
    ex = make()
    ex.add_config(pot={"size": 1})
    ex.main(lambda pot: pot["sise"])
    return outcome_of(lambda: typed(ex, "with", "pot.sise=2"))


@idiom("an import in a scope", sacred=True, sacristan=False)
def test_import_in_a_scope(lab, make):
    ex = make()

    @ex.config
    def brewing():
        import math

        volume = math.pi

    ex.main(lambda _config: "math" in _config)
    return ex.run().result


@idiom("the docstring of a named config", sacred=True, sacristan=False)
def test_docstring_of_a_named_config(lab, make):
    ex = make()
    ex.add_config(guests=3)

    @ex.named_config
    def party():
        """Many guests."""
        guests = 30

    ex.main(lambda _config: "__doc__" in _config)
    return ex.run(named_configs=["party"]).result


@idiom("a named config that takes a setting which is made later", sacred="KeyError", sacristan="ConfigError")
def test_named_config_that_takes_what_is_not_there(lab, make):
    ex = make()

    @ex.config
    def brewing():
        cups = 2

    @ex.named_config
    def double(cups):
        cups = 2 * cups

    ex.main(lambda cups: cups)
    return outcome_of(lambda: ex.run(named_configs=["double"]))


@idiom("writing to the config in a run", sacred=(SacredError, False), sacristan=(TypeError, True))
def test_config_is_read_only(lab, make):
    ex = make()
    ex.add_config(pot={"size": 1})

    @ex.main
    def brew(pot):
        with pytest.raises((SacredError, TypeError)) as refused:
            pot["size"] = 2
        return refused.type, hasattr(pot, "size")

    return ex.run().result


@idiom("`log_scalar` of a text", sacred=None, sacristan="MetricError")
def test_metric_that_is_no_number(lab, make):
    ex = make()
    ex.main(lambda _run: _run.log_scalar("tea", "green"))
    return outcome_of(ex.run)


# The page


def test_page_has_a_row_for_each_idiom_with_its_outcome():
    rows = re.findall(r"^\| (.+) \| (same|differs: .+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: outcome == "same" for name, outcome in rows} == IDIOMS
    assert len(rows) == len(IDIOMS) >= 30
