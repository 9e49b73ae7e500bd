"""The supported versions that docs/installing.md names: those of setup.cfg, constraints.txt and what is installed."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import sys
from pathlib import Path

import pymongo
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table():
    """The rows of the table by what they are about: what is allowed, and what is tested."""
    page = (ROOT / "docs" / "installing.md").read_text()
    section = page.partition("## Supported versions\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {name: (allowed, tested) for name, allowed, tested in rows[2:]}


@pytest.fixture(scope="module")
def setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def lines_of(text):
    return [Requirement(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_packages_are_those_of_setup_and_constraints_and_installed(table, setup):
    allowed = {one.name: one.specifier for one in lines_of(setup["options"]["install_requires"])}
    tested = {one.name: one.specifier for one in lines_of((ROOT / "constraints.txt").read_text())}
    packages = {name: row for name, row in table.items() if name not in ("Python", "MongoDB")}
    assert {"torch", "numpy", "sacred", "pymongo"} <= packages.keys()
    for name, (range_, version) in packages.items():
        assert (SpecifierSet(range_), SpecifierSet(f"=={version}")) == (allowed[name], tested[name]), name
        assert allowed[name].contains(importlib.metadata.version(name).partition("+")[0]), name


def test_pythons_are_those_of_setup_and_the_present_one(table, setup):
    allowed, tested = table["Python"]
    named = re.findall(r":: Python :: (3\.\d+)$", setup["metadata"]["classifiers"], re.MULTILINE)
    assert (allowed, tested.split(", ")) == (setup["options"]["python_requires"], named)
    assert "{}.{}".format(*sys.version_info) in named


def test_server_is_the_one_that_the_tests_use(table, mongo_url):
    allowed, tested = table["MongoDB"]
    assert allowed.startswith(f"{pymongo.common.MIN_SUPPORTED_SERVER_VERSION} or newer")
    with pymongo.MongoClient(mongo_url) as client:
        assert client.server_info()["version"] == tested


def test_every_requirement_has_a_lower_bound(setup):
    requirements = "\n".join([setup["options"]["install_requires"], *setup["options.extras_require"].values()])
    bounded = [{part.operator for part in one.specifier} & {">=", "=="} for one in lines_of(requirements)]
    names = [one.name for one in lines_of(requirements)]
    assert [name for name, found in zip(names, bounded, strict=True) if not found] == ["torchvision"]
