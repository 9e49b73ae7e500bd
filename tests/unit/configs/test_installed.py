"""Packages are found as `importlib.metadata` finds them, of which nothing is imported."""

import subprocess
import sys
import zipfile
from importlib import metadata

from sacristan.configs.installed import entry_points, find_package, packages_in


def install(folder, name="my-net", version="1.2", **files):
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
        install(tmp_path / folder, version=version, **{"entry_points.txt": points})
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert {find_package(name).version for name in ("my-net", "My_Net", "my.net")} == {"1.2"}
    assert (entry_points("mine"), entry_points("none")) == ({"x": "net:v1"}, {})
    assert find_package("my") is None


def test_half_removed_package_hides_no_whole_one(tmp_path, monkeypatch):
    (install(tmp_path, version="1.0") / "METADATA").unlink()
    install(tmp_path, version="2.0")
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
    install(tmp_path)
    assert find_package("my-net").version == "1.2"


def test_pythons_own_module_is_not_imported():
    script = "import sys; from sacristan.configs.installed import *; find_package('pytest'); entry_points('pytest11');"
    script += "print('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
