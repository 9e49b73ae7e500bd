"""Sacred without pandas at first, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
FLATTEN = """
import json, pandas
import sacred.optional
from sacred.serializer import flatten, restore
frame = pandas.DataFrame({"step": [1, 2], "loss": [0.5, 0.25]})
flat = flatten({"frame": frame, "losses": frame["loss"], "at": pandas.Timestamp(0)})
assert restore(flat)["frame"].equals(frame)
del flat["frame"]["meta"]["dtypes_rle"]  # jsonpickle's names of types change from process to process
print(sacred.optional.has_pandas, sacred.optional.pandas is pandas, json.dumps(flat, sort_keys=True))
"""


@pytest.fixture(scope="module")
def by_sacred_alone():
    return run(FLATTEN)


def run(script, **environment):
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pandas_is_not_imported_and_its_objects_are_serialized_as_by_sacred_alone(by_sacred_alone):
    asked = "import sys, ingredients, experiments; print('pandas' in sys.modules)"
    assert run(asked + FLATTEN) == "False\n" + by_sacred_alone


def test_pandas_that_is_imported_before_stays(by_sacred_alone):
    assert run("import pandas, ingredients" + FLATTEN) == by_sacred_alone


def test_pandas_is_imported_at_once_where_sacreds_tinydb_observer_needs_it(tmp_path):
    (tmp_path / "tinydb.py").touch()
    asked = "import sys, ingredients; print('pandas' in sys.modules)"
    assert run(asked, PYTHONPATH=str(tmp_path)) == "True\n"
