"""Three lines in scripts of several kinds: they print and exit as without, and their settings are the config."""

from __future__ import annotations

import json
import sys

import pytest

from sacristan.runs import open_store
from tests.processes import PIPE, run

# By what is imported: a script up to its settings, `args`; its words; and the config.
SCRIPTS = {
    "argparse": (
        """
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--out", type=pathlib.Path, default="out")
args = parser.parse_args()
""",
        ["--lr", "3"],
        {"lr": 3.0, "out": "out"},
    ),
    "dataclasses": (
        """
import dataclasses
@dataclasses.dataclass
class Net:
    width: int = 4
@dataclasses.dataclass
class Args:
    lr: float = 0.1
    net: Net = dataclasses.field(default_factory=Net)
args = Args()
""",
        [],
        {"lr": 0.1, "net": {"width": 4}},
    ),
    "simple_parsing": (
        """
from dataclasses import dataclass
from simple_parsing import ArgumentParser
@dataclass
class Opt:
    lr: float = 0.1
parser = ArgumentParser()
parser.add_arguments(Opt, dest="opt")
args = parser.parse_args()
""",
        ["--lr", "3"],
        {"opt": {"lr": 3.0}},
    ),
    "tyro": (
        """
import dataclasses, tyro
@dataclasses.dataclass
class Args:
    lr: float = 0.1
    names: tuple[str, ...] = ("a", "b")
args = tyro.cli(Args)
""",
        ["--lr", "3"],
        {"lr": 3.0, "names": ["a", "b"]},
    ),
    "jsonargparse": (
        """
from jsonargparse import ArgumentParser
parser = ArgumentParser()
parser.add_argument("--opt.lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
""",
        ["--opt.lr", "3"],
        {"opt": {"lr": 3.0}, "seed": 1},
    ),
    "omegaconf": (
        """
from omegaconf import OmegaConf
args = OmegaConf.create({"lr": 0.1, "opt": {"twice": "${lr}"}})
""",
        [],
        {"lr": 0.1, "opt": {"twice": 0.1}},
    ),
    "absl": (
        """
import sys
from absl import flags
flags.DEFINE_float("lr", 0.1, "lr")
args = flags.FLAGS
args(sys.argv)
""",
        ["--lr", "3"],
        {"lr": 3.0},
    ),
}
LOOP = """
START
for step in range(4):
    loss = 1 / (step + 1)
    print(loss)
    LOG
sys.exit(3)
"""


def started(folder, name, text, words):
    (folder / name).write_text(text)
    done = run([sys.executable, name, *words], cwd=folder, stdout=PIPE, stderr=PIPE, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*SCRIPTS])
def test_three_lines_change_nothing_of_a_script_and_record_it(tmp_path, name):
    pytest.importorskip(name)
    text, words, config = SCRIPTS[name]
    plain = f"import sys\n{text}{LOOP}".replace("START", "").replace("LOG", "pass")
    ours = f"import sys\n{text}{LOOP}".replace("START", "import sacristan\nrun = sacristan.init(config=args)")
    ours = ours.replace("LOG", "run.log({'loss': loss}, step)")
    expected = started(tmp_path, "plain.py", plain, words)
    code, out, err = started(tmp_path, "train.py", ours, words)
    assert (code, out) == expected[:2] == (3, "1.0\n0.5\n0.3333333333333333\n0.25\n"), err
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        recorded = json.loads(json.dumps(found.config))
        assert {key: recorded[key] for key in config} == config
        assert name == "absl" or recorded.keys() == config.keys()
        assert found.status == "FAILED"
        assert found.metric("loss").values.tolist() == [1 / (step + 1) for step in range(4)]
