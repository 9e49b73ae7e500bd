"""The idioms of Sacred's public examples and guide, each under stock Sacred and under the lab, with one outcome."""

from __future__ import annotations

import json
import logging
import types
from pathlib import Path

import numpy as np
import pytest
import sacred
from sacred.commandline_options import cli_option
from sacred.observers import FileStorageObserver, RunObserver
from sacred.utils import InvalidConfigError, apply_backspaces_and_linefeeds

import experiments
import ingredients
import observers

LABS = {
    "sacred": types.SimpleNamespace(
        Experiment=sacred.Experiment, Ingredient=sacred.Ingredient, FileStorageObserver=FileStorageObserver
    ),
    "sacristan": types.SimpleNamespace(
        Experiment=experiments.Experiment,
        Ingredient=ingredients.Ingredient,
        FileStorageObserver=observers.FileObserver,
    ),
}


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


def test_entries_of_a_dict_and_keywords_reach_main(make):
    ex = make()
    ex.add_config({"tea": "green"})
    ex.add_config(cups=2)
    ex.main(lambda tea, cups: f"{cups} {tea}")
    assert typed(ex).result == "2 green"
    assert typed(ex, "with", "tea=black", "cups=3").result == "3 black"


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


def test_named_config_of_a_dict_is_used_from_python(make):
    ex = make()
    ex.add_config(guests=3)
    ex.add_named_config("party", {"guests": 30})
    ex.main(lambda guests: guests)
    assert ex.run(named_configs=["party"]).result == 30
    assert ex.run(config_updates={"guests": 4}, named_configs=["party"]).result == 4


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


def test_class_and_function_are_entries(make):
    ex = make()

    @ex.config
    def choosing():
        kind = dict
        scale = np.sqrt
        offset = lambda x: x + 1  # noqa: E731

    ex.main(lambda kind, scale, offset: (kind(), scale(4.0), offset(1)))
    assert typed(ex).result == ({}, 2.0, 2)


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


def test_required_argument_comes_from_the_command_line(make):
    ex = make()
    pour = ex.capture(lambda cup: f"into the {cup}")
    ex.main(lambda: pour())
    assert typed(ex, "with", "cup=red").result == "into the red"


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


def test_global_streams_are_seeded(make):
    ex = make()
    ex.add_config(seed=42)
    ex.main(lambda: float(np.random.random()))
    assert ex.run().result == ex.run().result == typed(ex, "with", "seed=42").result


# Commands


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
