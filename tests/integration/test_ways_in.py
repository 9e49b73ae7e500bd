"""Every way in which Sacred lets a config be given, and the commands that show and save it."""

import copy
import json
from types import SimpleNamespace

import pytest
import yaml

from sacristan.experiments import Experiment
from sacristan.experiments.running.commands import in_order
from sacristan.ingredients import Ingredient


@pytest.fixture
def experiment():
    part = Ingredient("part")

    @part.config
    def part_config():
        # how wide
        width = 8
        # how high; twice the width
        height = width * 2
        # anything
        options = {}

    @part.named_config
    def tall():
        """Be tall."""
        height = 100

    @part.command
    def area(width, height):
        """Return the area."""
        return width * height

    lab = Experiment("lab", ingredients=[part])

    @lab.config
    def lab_config(part):
        # steps in all; by the width
        steps = part["width"] * 10
        # half of them
        half = steps // 2
        text = "a"
        names = []
        d = {}
        rate = 0.1
        maybe = None
        seed = 0

    @lab.named_config
    def long():
        """Take many steps.

        More than usual.
        """
        steps = 1000
        part = {"width": 9}

    @lab.named_config
    def undescribed():
        rate = 0.2

    @lab.main
    def main(_config):
        """Return the config."""
        return _config

    @lab.command(unobserved=True)
    def double(rate, factor=2.0):
        """Return the rate, doubled."""
        return rate * factor

    return lab


@pytest.fixture
def result(experiment):
    """Return what runs a command line and returns its result."""

    def result(*words):
        return experiment.run_commandline(["lab.py", *words]).result

    return result


@pytest.fixture
def refused(experiment, capfd):
    """Return what runs a command line that is refused and returns what it says."""

    def refused(*words):
        with pytest.raises(SystemExit) as left:
            experiment.run_commandline(["lab.py", *words])
        assert left.value.code == 1
        return capfd.readouterr().err

    return refused


@pytest.fixture
def shown(experiment, capfd):
    """Return what runs a command line and returns what it prints."""

    def shown(*words):
        capfd.readouterr()
        try:
            experiment.run_commandline(["lab.py", *words])
        except SystemExit as left:
            assert left.code in (None, 0)  # noqa: PT017
        return capfd.readouterr().out

    return shown


# Scopes


def test_scope_entries_depend_on_earlier_ones_and_on_ingredients(result):
    config = result()
    assert (config.part.width, config.part.height, config.steps, config.half) == (8, 16, 80, 40)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["part.width=3"], (3, 6, 30, 15)),
        (["part.height=3"], (8, 3, 80, 40)),
        (["steps=7"], (8, 16, 7, 3)),
        (["half=7"], (8, 16, 80, 7)),
        (["long"], (9, 18, 1000, 500)),
        (["part.tall"], (8, 100, 80, 40)),
        (["part.tall", "long", "steps=4"], (9, 100, 4, 2)),
        (["long", "part.width=3"], (3, 6, 1000, 500)),
    ],
)
def test_update_or_named_config_reaches_what_depends_on_it(result, words, expected):
    config = result("with", *words)
    assert (config.part.width, config.part.height, config.steps, config.half) == expected


def test_second_scope_depends_on_the_first(experiment, result):
    @experiment.config
    def more(steps, part):
        quarter = steps // 4
        wide = part["width"] > 8

    config = result("with", "steps=100")
    assert (config.quarter, config.wide) == (25, False)
    assert result("with", "part.width=9").wide is True


def test_config_hook_fills_in_what_was_left_open(experiment, result):
    @experiment.config_hook
    def fill_in(config, command_name, logger):
        return {"maybe": config.part.width * 3} if config.maybe is None else {}

    assert result().maybe == 24
    assert result("with", "part.width=1").maybe == 3
    assert result("with", "maybe=5").maybe == 5


def test_config_hook_reads_an_int_given_for_a_float_as_a_float(experiment, result):
    @experiment.config_hook
    def fill_in(config, command_name, logger):
        return {"text": repr(config.rate)}

    config = result("with", "rate=1")
    assert (config.text, repr(config.rate)) == ("1.0", "1.0")


# Dicts and files in the code


@pytest.fixture
def files(tmp_path):
    """Return config files that say the same, by kind."""
    entries = {"rate": 0.001, "part": {"width": 3}, "names": ["a b", "c"]}
    for suffix in ("yaml", "yml", "json"):
        (tmp_path / f"recipe.{suffix}").write_text(json.dumps(entries).replace("0.001", "1e-3"))
    return {suffix: str(tmp_path / f"recipe.{suffix}") for suffix in ("yaml", "yml", "json")}


def check_file_config(config):
    assert (config.rate, config.part.width, config.part.height, config.names) == (0.001, 3, 6, ["a b", "c"])


def test_add_config_takes_a_dict_and_keywords(experiment, result):
    experiment.add_config({"extra": {"a": 1}})
    experiment.add_config(more=2.0, extra={"b": "x"})
    config = result("with", "extra.a=3", "more=1")
    assert (config.extra, config.more) == ({"a": 3, "b": "x"}, 1.0)


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_add_config_takes_a_file(files, suffix):
    lab = Experiment("lab")
    lab.add_config(files[suffix])

    @lab.main
    def main(_config):
        return _config

    assert lab.run(config_updates={"rate": 1}).result.rate == 1.0
    check_file_config(lab.run(config_updates={"part.height": 6}, options={"--force": True}).result)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_add_named_config_takes_a_file_a_dict_and_keywords(experiment, files, result, suffix):
    experiment.add_named_config("from_file", files[suffix])
    experiment.add_named_config("from_dict", {"text": "b"})
    experiment.add_named_config("from_keywords", maybe=1)
    config = result("with", "from_file", "from_dict", "from_keywords")
    check_file_config(config)
    assert (config.text, config.maybe) == ("b", 1)


# Files on the command line


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_with_file_takes_its_entries(files, result, suffix):
    check_file_config(result("with", files[suffix]))


def test_with_file_the_command_line_goes_before_it(files, result):
    config = result("with", files["yaml"], "rate=0.5", "part.width=1")
    assert (config.rate, config.part.width, config.names) == (0.5, 1, ["a b", "c"])


def test_with_two_files_the_later_goes_before_the_earlier(files, tmp_path, result):
    (tmp_path / "later.yaml").write_text("rate: 0.5\n")
    config = result("with", files["yaml"], str(tmp_path / "later.yaml"))
    assert (config.rate, config.part.width) == (0.5, 3)


# The command line


@pytest.mark.parametrize(
    ("word", "entry", "value"),
    [
        ("text=b", "text", "b"),
        ("text=a b", "text", "a b"),
        ("text= a b ", "text", "a b"),
        ("text='3'", "text", "3"),
        ('text="a=b"', "text", "a=b"),
        ("text=a=b", "text", "a=b"),
        ("text=a,b", "text", "a,b"),
        ("text=/data/[x]/y.csv", "text", "/data/[x]/y.csv"),
        ("maybe=3", "maybe", 3),
        ("maybe=1e3", "maybe", 1000.0),
        ("maybe=True", "maybe", True),
        ("maybe=true", "maybe", "true"),
        ("maybe=None", "maybe", None),
        ('names=["a b", "c"]', "names", ["a b", "c"]),
        ("names = ['a b']", "names", ["a b"]),
        ("names=[]", "names", []),
        ("names=[['a'], {'b': [1]}]", "names", [["a"], {"b": [1]}]),
        ('d={"x": 1}', "d", {"x": 1}),
        ('d={"x": {"y": [1, 2.5, None]}}', "d", {"x": {"y": [1, 2.5, None]}}),
        ("d.x.y=3", "d", {"x": {"y": 3}}),
        ("rate=2", "rate", 2.0),
    ],
)
def test_word_of_the_command_line_is_read_as_python(result, word, entry, value):
    assert result("with", word)[entry] == value


def test_command_line_as_one_string_is_split_like_a_shell_does(experiment):
    line = """lab.py with 'names=["a b", "c"]' 'd={"x": 1}' text="a b" rate=2 long part.options.k=v"""
    config = experiment.run_commandline(line).result
    assert (config.names, config.d, config.text) == (["a b", "c"], {"x": 1}, "a b")
    assert (config.rate, config.steps, config.part.options.k) == (2.0, 1000, "v")


def test_command_line_defaults_to_that_of_the_process(experiment, monkeypatch):
    monkeypatch.setattr("sys.argv", ["lab.py", "double", "with", "rate=3"])
    assert experiment.run_commandline().result == 6.0


def test_command_of_the_experiment_and_of_an_ingredient_run(result):
    assert result("double") == 0.2
    assert result("part.area", "with", "part.width=3") == 18


def test_command_argument_of_its_own_can_be_set(result, refused):
    assert result("double", "with", "factor=3") == pytest.approx(0.3)
    assert "factor: got 'x' (str), expected a number; for text" in refused("double", "with", "factor=x")
    assert "did you mean factor?" in refused("double", "with", "facotr=3")


def test_updates_in_code_take_dotted_names_and_nested_dicts(experiment):
    for updates in {"part.width": 3, "d.x.y": 1}, {"part": {"width": 3}, "d": {"x": {"y": 1}}}:
        before = copy.deepcopy(updates)
        config = experiment.run(config_updates=updates).result
        assert (config.part.height, config.d.x.y) == (6, 1)
        assert updates == before


# Commands that show and save


def test_print_config_shows_value_and_meaning_of_every_entry(shown):
    assert shown("print_config", "with", "part.width=3") == (
        "steps = 30      # steps in all; by the width\n"
        "half = 15       # half of them\n"
        "text = 'a'\n"
        "names = []\n"
        "d = {}\n"
        "rate = 0.1\n"
        "maybe = None\n"
        "seed = 0        # the random seed for this experiment\n"
        "part:\n"
        "  width = 3     # [command line] how wide\n"
        "  height = 6    # how high; twice the width\n"
        "  options = {}  # anything\n"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["part", "-l", "WARNING"],
            "part:\n  width = 8     # how wide\n  height = 16   # how high; twice the width\n"
            "  options = {}  # anything\n",
        ),
        (["wid"], "part:\n  width = 8  # how wide\n"),
        (["part.width", "rate"], "rate = 0.1\npart:\n  width = 8  # how wide\n"),
        (["changed"], "all of these settings are at their defaults\n"),
        (
            ["changed", "with", "part.width=3", "rate=0.2"],
            "rate = 0.2   # [command line]\npart:\n  width = 3  # [command line] how wide\n",
        ),
        (["rate", "changed", "with", "part.width=3", "rate=0.2"], "rate = 0.2  # [command line]\n"),
        (["part.area", "wid"], "part:\n  width = 8  # how wide\n"),
        (["main", "half"], "half = 40  # half of them\n"),
    ],
)
def test_print_config_with_words_shows_the_entries_whose_names_contain_one(shown, words, expected):
    assert shown("print_config", *words) == expected


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["part", "widht"], "widht: there is no such command or setting; did you mean part.width?"),
        (["part.aera"], "part.aera: there is no such command or setting; did you mean part.area?"),
        (["qqqq"], "qqqq: there is no such command or setting; print_config without it lists the settings"),
    ],
)
def test_print_config_with_a_mistyped_word_names_the_nearest(refused, words, named):
    assert named in refused("print_config", *words)


def test_save_config_with_the_word_of_a_setting_is_refused(refused):
    assert "width: there is no such command" in refused("save_config", "width")


def test_print_config_prints_first_what_people_change_first():
    names = ("device", "mine", "training", "model", "data")
    config = {**{name: {"size": 1} for name in names}, "group": {"x": 1}, "lr": 1}
    ingredients = {name: SimpleNamespace(is_of_lab=name != "mine") for name in names}
    entries = [entry for entry, _ in in_order(config, ingredients)]
    assert [entry for entry in entries if "." not in entry] == [
        "lr",
        "group",
        "mine",
        "data",
        "model",
        "training",
        "device",
    ]


def test_print_config_of_an_experiment_without_entries_shows_the_seed(capsys):
    Experiment("empty").run("print_config", {"seed": 3})
    assert capsys.readouterr().out == "seed = 3  # [command line]\n"


def test_print_config_option_shows_it_before_the_run(shown, experiment):
    assert "how wide" in shown("--print-config")


def test_print_named_configs_shows_name_and_meaning(shown):
    assert shown("print_named_configs") == ("long         # Take many steps.\nundescribed\npart.tall    # Be tall.\n")


def test_print_named_configs_without_any_says_so(capsys):
    Experiment("empty").run("print_named_configs")
    assert capsys.readouterr().out == "there are no named configs\n"


def test_print_dependencies_shows_the_sources(shown):
    assert "test_ways_in.py" in shown("print_dependencies")


@pytest.mark.parametrize(
    ("name", "read"), [("a.json", json.load), ("a.yaml", yaml.safe_load), ("a.yml", yaml.safe_load)]
)
def test_save_config_writes_what_with_file_reads(result, tmp_path, name, read):
    path = tmp_path / name
    words = ["part.tall", "rate=1e-3", 'names=["a b"]', "d.x=1", "seed=5"]
    result("save_config", "with", *words, f"config_filename={path}")
    with path.open() as stream:
        saved = read(stream)
    assert saved == result("with", *words) == result("with", str(path))
    assert "config_filename" not in saved


def test_save_config_writes_config_json_by_default(result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result("save_config", "with", "steps=3")
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 3


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "config_filename=a.txt",
            "error: config_filename: got 'a.txt', expected a name ending in .yaml, .yml or .json\n",
        ),
        (
            "config_filename=3",
            "error: config_filename: got 3 (int), expected a string; for the text write config_filename='\"3\"'",
        ),
        (
            "config_flename=a.json",
            "error: config_flename: got 'a.json', but there is no such entry; did you mean config_f",
        ),
        ("config_filename=no/a.json", "error: no/a.json: cannot be written: No such file or directory; choose another"),
    ],
)
def test_save_config_that_cannot_be_refused(refused, tmp_path, monkeypatch, word, message):
    monkeypatch.chdir(tmp_path)
    assert refused("save_config", "with", word).startswith(message)
    assert list(tmp_path.iterdir()) == []


# Help


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["help"]])
def test_help_shows_usage_options_and_commands(shown, words):
    text = shown(*words)
    assert text.startswith("Usage:")
    assert "--force" in text
    for line in ("double               Return the rate, doubled.", "part.area            Return the area."):
        assert line in text
    assert __doc__.splitlines()[0] in text


def test_help_for_a_command_shows_its_documentation(shown):
    assert "Return the rate, doubled." in shown("help", "double")
    assert "Return the area." in shown("help", "part.area")
    assert "Print every setting with its value and meaning" in shown("help", "print_config")


@pytest.mark.parametrize("words", [["duoble"], ["help", "duoble"], ["duoble", "with", "rate=1"]])
def test_unknown_command_refused_with_the_nearest(refused, words):
    assert refused(*words) == "error: duoble: there is no such command; did you mean double?\n"


def test_unknown_command_unlike_any_refused_with_all(refused):
    assert refused("zzzzzz") == (
        "error: zzzzzz: there is no such command; there are: print_config, print_dependencies, save_config, "
        "print_named_configs, main, double, part.area\n"
    )


def test_unknown_command_that_is_a_config_says_how_to_use_it(refused, files):
    assert refused("part.tall").endswith("to use it as a config, write with part.tall\n")
    assert refused(files["yaml"]).endswith(f"to use it as a config, write with {files['yaml']}\n")


def test_experiment_without_a_main_function_says_what_there_is(capfd):
    with pytest.raises(SystemExit):
        Experiment("empty").run_commandline(["lab.py"])
    assert "No command found to be run" in capfd.readouterr().out


def test_experiment_is_called_like_its_file_by_default():
    assert Experiment().path == "test_ways_in"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nmae=x"], "--nmae: there is no such option; did you mean --name?"),
        (["main", "-Z", "with", "lr=1"], "-Z: there is no such option"),
        (["with", "lr=1", "--zzzzzz"], "--zzzzzz: there is no such option; -h lists them"),
        (["--z.z", "1"], "--z.z: there is no such option; -h lists them; a setting is written with z.z=VALUE"),
        (["--p"], "--p: there is no such option"),
        (["-i", "latest"], "-i: got 'latest', expected the name of a folder, and not latest"),
        (["--id=a/b"], "--id: got 'a/b', expected the name of a folder"),
        (["-F"], "-F: got no value; write -F VALUE"),
        (["--name"], "--name: got no value; write --name=VALUE"),
        (["--force=yes"], "--force: got the value 'yes', but it takes none; write --force"),
    ],
)
def test_unknown_or_incomplete_option_refused(refused, words, message):
    assert message in refused(*words)


@pytest.mark.parametrize("words", [["-l", "-10"], ["--logl=ERROR"], ["-lERROR"], ["-u", "-fd"], ["--unobserved"]])
def test_option_in_every_form_taken(result, words):
    assert result(*words) is not None


# What ends in one line


@pytest.mark.parametrize("decorator", ["config", "named_config"])
def test_scope_that_returns_ends_in_one_line(tmp_path, capfd, decorator):
    script = tmp_path / "returning.py"
    script.write_text(
        "from sacristan.experiments import Experiment\n"
        "ex = Experiment('returning')\n"
        f"@ex.{decorator}\n"
        "def mine():\n"
        "    width = 3\n"
        "    return {'height': width}\n"
        "ex.main(lambda: None)\n"
    )
    names = {"__file__": str(script), "__name__": "returning"}
    exec(compile(script.read_text(), str(script), "exec"), names)
    with pytest.raises(SystemExit):
        names["ex"].run_commandline(["returning.py"])
    assert capfd.readouterr().err == (
        f"error: config scope mine: 'return' outside function (line 6 of {script}); a scope neither returns nor "
        "yields: its local variables are the entries\n"
    )


@pytest.mark.parametrize("tag", ["py/type", "py/object", "py/function", "py/reduce", "json://x"])
def test_config_file_that_would_build_objects_is_refused_by_the_setting(refused, tmp_path, tag):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"d": {tag: "torch.nn.GRU"}}))
    what = "an unknown class" if tag in ("py/reduce", "json://x") else "torch.nn.GRU"
    assert refused("with", str(path)) == (
        f"error: d: got an object of {what} from a file, which can only stand for an equal default, and the default "
        "here differs; restore it, give plain values or a dotted name, or leave d out of the file\n"
    )
