"""The names that `from sacristan.runs import ...` has, and that each is described well enough to be used."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sacristan import runs

LAB = Path(runs.__file__).parents[1]
TREE = ast.parse(Path(runs.__file__).read_text(encoding="utf-8"))


def test_exported_members():
    assert runs.__all__ == [
        "ArchiveError",
        "ChangedError",
        "Comparison",
        "ComparisonError",
        "Content",
        "Copied",
        "DamagedError",
        "Difference",
        "DiscardedError",
        "ExperimentLoader",
        "Exported",
        "ExportedRun",
        "Fetched",
        "FilterError",
        "ForeignError",
        "ImportedRun",
        "LaunchError",
        "Medium",
        "MissingExtraError",
        "Mongod",
        "PlotError",
        "Reaped",
        "Removed",
        "ReportError",
        "Reproduction",
        "Run",
        "RunNotFoundError",
        "RunsError",
        "Series",
        "ServerError",
        "Store",
        "StoreAwayError",
        "StoreError",
        "SweepError",
        "SyncResult",
        "Tolerance",
        "Verdict",
        "Words",
        "compare",
        "copy",
        "diff",
        "export_runs",
        "export_to",
        "fetch",
        "fork",
        "import_foreign",
        "import_runs",
        "incense",
        "open_store",
        "reap",
        "reproduce",
        "resume",
        "sync",
        "write_report",
    ]
    assert set(runs.__all__) <= set(dir(runs))


def test_editors_see_what_python_loads():
    for_editors = {
        alias.name: node.module
        for branch in TREE.body
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert for_editors == runs._HOMES
    assert for_editors.keys() == set(runs.__all__)


@pytest.mark.parametrize("name", runs.__all__)
def test_name_lives_where_the_table_says(name):
    exported = getattr(runs, name)
    assert (exported.__name__, exported.__module__) == (name, runs._HOMES[name])


def test_unknown_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match=r"module 'sacristan\.runs' has no attribute 'opne_store'"):
        runs.opne_store  # noqa: B018


def test_import_is_cheap_and_names_load_what_they_need():
    script = """
import sys
before = set(sys.modules)
from sacristan import runs
new = {name for name in set(sys.modules) - before if name.split(".")[0] in ("sacristan", "numpy")}
assert new == {"sacristan", "sacristan.runs"}, new
runs.RunsError
assert "numpy" not in sys.modules and "pymongo" not in sys.modules
for name in runs.__all__:
    getattr(runs, name)
print([heavy for heavy in ("torch", "sacred", "pandas", "rich", "incense", "matplotlib") if heavy in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=LAB, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# Docstrings


def sections(doc):
    """Return the sections of a docstring by their names; the text ahead of them as ``""``."""
    parts = re.split(r"^(Args|Attributes|Returns|Yields|Raises|Example):\n", doc, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def example_of(name):
    return textwrap.dedent(sections(inspect.getdoc(getattr(runs, name)))["Example"])


FUNCTIONS = [name for name in runs.__all__ if inspect.isfunction(getattr(runs, name))]
ERRORS = [name for name in runs.__all__ if name.endswith("Error")]
RECORDS = [
    name
    for name in runs.__all__
    if dataclasses.is_dataclass(getattr(runs, name)) or hasattr(getattr(runs, name), "_fields")
]
# What people make or begin with.
WITH_EXAMPLE = [*FUNCTIONS, "Content", "ExperimentLoader", "Medium", "Mongod", "Run", "Series", "Store", "Tolerance"]
# Their examples start experiments or servers; `tests/integration/test_starting.py` and others do what they show.
STARTING_PROCESSES = ["Mongod", "Tolerance", "fork", "incense", "reproduce", "resume"]


def test_every_export_is_looked_at():
    assert {*FUNCTIONS, *ERRORS, *RECORDS, *WITH_EXAMPLE} == set(runs.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_says_what_it_takes_returns_and_raises(name):
    function = getattr(runs, name)
    parts = sections(inspect.getdoc(function))
    assert parts[""].splitlines()[0].endswith(".")
    named = re.findall(r"^    (\w[\w, ]*):", parts["Args"], re.MULTILINE)
    assert [part for names in named for part in names.split(", ")] == list(inspect.signature(function).parameters)
    assert parts["Yields" if inspect.isgeneratorfunction(function) else "Returns"].strip()
    raised = re.findall(r"^    (\w+): ", parts["Raises"], re.MULTILINE)
    assert raised
    assert set(raised) <= set(ERRORS)


@pytest.mark.parametrize("name", RECORDS)
def test_record_says_what_each_of_its_fields_is(name):
    exported = getattr(runs, name)
    is_dataclass = dataclasses.is_dataclass(exported)
    fields = [field.name for field in dataclasses.fields(exported)] if is_dataclass else exported._fields
    named = re.findall(r"^    (\w[\w, ]*): \S", sections(inspect.getdoc(exported))["Attributes"], re.MULTILINE)
    assert [part for names in named for part in names.split(", ")] == list(fields)


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_example_shows_the_name(name):
    example = example_of(name)
    assert re.search(rf"\b({name}|{name.lower()})\b", example)
    compile(example, name, "exec")


@pytest.mark.parametrize("name", [name for name in WITH_EXAMPLE if name not in STARTING_PROCESSES])
def test_example_runs(name, tmp_path, monkeypatch, write_store):
    runs_ = [
        {
            "seed": seed,
            "optimizer": {"name": optimizer, "lr": lr},
            "result": score,
            "metrics": {"train/loss": [0.9, 0.5], "val/loss": [0.8, 0.6], "val/accuracy": [score]},
        }
        for optimizer, lr, score in (("Adam", 1e-4, 0.9), ("SGD", 1e-2, 0.7))
        for seed in range(3)
    ]
    with write_store(*runs_, name="my_runs") as store:
        add_files(tmp_path / "my_runs" / "6")
        monkeypatch.chdir(tmp_path)
        given = {"run": store.get("latest")}
        if name == "import_runs":
            runs.export_runs([given["run"]], "completed.zip")
        if name == "import_foreign":
            (tmp_path / "metrics.csv").write_text("step,loss\n0,1.5\n")
        exec(example_of(name), {**{member: getattr(runs, member) for member in runs.__all__}, **given})


def add_files(folder):
    """Add a source and an artifact to a run."""
    document = json.loads((folder / "run.json").read_text())
    (folder.parent / "_sources").mkdir()
    (folder.parent / "_sources" / "exp.py").write_text("print()")
    (folder / "weights.txt").write_text("weights")
    document["artifacts"] = ["weights.txt"]
    document["experiment"]["sources"] = [["exp.py", "_sources/exp.py"]]
    (folder / "run.json").write_text(json.dumps(document))


@pytest.mark.parametrize("name", ERRORS)
def test_error_is_one_of_the_tree(name):
    assert issubclass(getattr(runs, name), runs.RunsError)
    assert inspect.getdoc(getattr(runs, name)).endswith(".")
