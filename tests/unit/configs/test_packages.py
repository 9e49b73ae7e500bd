"""Installed packages, and the command that installs an extra from where the lab was installed."""

import json
import subprocess
import sys
import zipfile
from importlib import metadata

import pytest

from sacristan.configs import packages
from sacristan.configs.packages import (
    Package,
    entry_points,
    find_package,
    install_command,
    missing_package,
    origin,
    packages_in,
)


@pytest.fixture
def installed(monkeypatch):
    """Say where the lab was installed from: `installed(**direct_url)`, as pip writes it down."""

    def install(**direct_url):
        files = {"METADATA": "Name: sacristan\nVersion: 0.3.0\n"}
        files |= {"direct_url.json": json.dumps(direct_url)} if direct_url else {}
        requires = ["torch>=2.6", "optuna>=5; extra == 'sweeps'", 'cmaes>=0.11; extra == "sweeps"']
        monkeypatch.setattr(packages, "checkout", lambda: None)
        monkeypatch.setattr(packages, "find_package", lambda name: Package(files.get) if name == "sacristan" else None)
        monkeypatch.setattr(metadata, "requires", lambda name: requires)
        packages._direct_url.cache_clear()

    yield install
    packages._direct_url.cache_clear()


def test_extra_of_a_checkout_is_installed_from_it(monkeypatch, tmp_path):
    (tmp_path / "my lab").mkdir()
    monkeypatch.setattr(packages, "checkout", lambda: tmp_path / "my lab")
    assert install_command("sweeps") == f"pip install -e '{tmp_path}/my lab[sweeps]'"


def test_extra_of_an_index_has_the_name_alone(installed):
    installed()
    assert (install_command("sweeps"), origin()) == ("pip install 'sacristan[sweeps]'", "sacristan==0.3.0")


def test_missing_package_is_named_with_the_command_that_installs_it(installed):
    installed()
    said = "plots need the package 'plotly', which is not installed; install it with: pip install 'sacristan[sweeps]'"
    assert missing_package("plots need", "plotly", "sweeps") == said


def test_extra_of_a_git_url_has_its_commit(installed):
    installed(url="https://host/lab.git", vcs_info={"vcs": "git", "commit_id": "3f2a"})
    assert install_command("sweeps") == "pip install 'sacristan[sweeps] @ git+https://host/lab.git@3f2a'"
    assert packages.commit() == "3f2a"


def test_extra_of_a_wheel_has_its_path_while_it_is_there(installed, tmp_path):
    wheel = tmp_path / "sacristan-0.3.0-py3-none-any.whl"
    wheel.touch()
    installed(url=wheel.as_uri(), archive_info={})
    assert install_command("sweeps") == f"pip install 'sacristan[sweeps] @ {wheel.as_uri()}'"
    wheel.unlink()
    assert install_command("sweeps") == "pip install 'optuna>=5' 'cmaes>=0.11'"


# ---------------------------------------------------------------------- packages, as `importlib.metadata` finds them


def add_package(folder, name="my-net", version="1.2", **files):
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    for file, text in {"METADATA": f"Name: {name}\nVersion: {version}\n\nVersion: none\n", **files}.items():
        (place / file).write_text(text)
    return place


def test_installed_packages_and_entry_points_are_those_of_pythons_own_module():
    names = {each.metadata["Name"] for each in metadata.distributions()}
    assert len(names) > 20
    for name in names:
        assert find_package(name).version == metadata.version(name)
    for group in ("pytest11", "console_scripts"):
        assert entry_points(group) == {each.name: each.value for each in metadata.entry_points(group=group)}


def test_package_is_found_by_any_spelling_and_the_first_on_the_path_counts(tmp_path, monkeypatch):
    for folder, version in (("a", "1.2"), ("b", "2.0")):
        (tmp_path / folder).mkdir()
        points = f"[mine]\nx = net:v{version[0]}\n[other]\ny=z"
        add_package(tmp_path / folder, version=version, **{"entry_points.txt": points})
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert {find_package(name).version for name in ("my-net", "My_Net", "my.net")} == {"1.2"}
    assert (entry_points("mine"), entry_points("none")) == ({"x": "net:v1"}, {})
    assert find_package("my") is None


def test_half_removed_package_hides_no_whole_one(tmp_path, monkeypatch):
    (add_package(tmp_path, version="1.0") / "METADATA").unlink()
    add_package(tmp_path, version="2.0")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert [package.version for package in packages_in(str(tmp_path))] == ["2.0"]
    assert find_package("my-net").version == "2.0"


def test_package_in_an_archive_is_found(tmp_path, monkeypatch):
    archive = tmp_path / "my.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("my_net-3.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: my-net\nVersion: 3.0\n")
    monkeypatch.setattr(sys, "path", [str(archive)])
    assert find_package("my-net").version == "3.0"


def test_package_that_is_installed_meanwhile_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_package("my-net") is None
    add_package(tmp_path)
    assert find_package("my-net").version == "1.2"


def test_pythons_own_module_is_not_imported():
    script = "import sys; from sacristan.configs.packages import *; find_package('pytest'); entry_points('pytest11');"
    script += "print('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
