"""Command lines of a README, and how values of a config are compared."""

from pathlib import Path

import numpy as np
import pytest

from sacristan.configs import Map
from sacristan.experiments.probe import canonical
from sacristan.runs import LaunchError
from sacristan.runs.rerun.checking import command_lines

TRAIN = Path("src/train.py")


@pytest.mark.parametrize(
    ("text", "words", "variables"),
    [
        ("with lr=0.1", ["with", "lr=0.1"], {}),
        ("$ python train.py with lr=0.1  # slow", ["with", "lr=0.1"], {}),
        ("CUDA_VISIBLE_DEVICES=0 A= python3 src/train.py", [], {"CUDA_VISIBLE_DEVICES": "0", "A": ""}),
        ("./train.py greet with name='a b'", ["greet", "with", "name=a b"], {}),
        ("python train.py \\\n  with lr=1 \\\n  n=2", ["with", "lr=1", "n=2"], {}),
        ("-l WARNING", ["-l", "WARNING"], {}),
    ],
)
def test_command_line_is_read_as_it_stands_in_a_readme(text, words, variables):
    [line] = command_lines(f"# examples\n\n{text}\n", TRAIN)
    assert (list(line.words), line.variables) == (words, variables)


def test_command_lines_of_a_module():
    [line] = command_lines("python -m pkg.train with lr=1", Path("pkg.train"))
    assert line.words == ("with", "lr=1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n# nothing\n", "got no command line, expected one a line, such as: with lr=0.1"),
        ("with a=1\nwith b='", r"command line 2 cannot be read \(No closing quotation\): with b='"),
        ("python eval.py with a=1", "command line 1: got one of eval.py, expected one of train.py"),
    ],
)
def test_file_without_readable_command_lines_is_rejected(text, said):
    with pytest.raises(LaunchError, match=said):
        command_lines(text, TRAIN)


class Mute:
    def __repr__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1e6, 1_000_000),
        ((1, 0.5), [1.0, 0.5]),
        ({"a": 1, "b": [2]}, Map(b=(2,), a=1)),
        (np.float64(0.5), 0.5),
        (object(), object()),
        (Mute(), Mute()),
    ],
)
def test_equal_values_have_one_text(one, other):
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(("one", "other"), [(1, True), ("1", 1), (None, "None"), (0.1, 0.2), (dict, list), ([], {})])
def test_different_values_have_different_texts(one, other):
    assert canonical(one) != canonical(other)
