"""The command that installs an extra, from where the lab was installed."""

import json
from importlib import metadata

import pytest

from sacristan.configs import installation
from sacristan.configs.installation import install_command, missing_package, origin
from sacristan.configs.installed import Package


@pytest.fixture
def installed(monkeypatch):
    """Say where the lab was installed from: `installed(**direct_url)`, as pip writes it down."""

    def install(**direct_url):
        files = {"METADATA": "Name: sacristan\nVersion: 0.3.0\n"}
        files |= {"direct_url.json": json.dumps(direct_url)} if direct_url else {}
        requires = ["torch>=2.6", "optuna>=5; extra == 'sweeps'", 'cmaes>=0.11; extra == "sweeps"']
        monkeypatch.setattr(installation, "checkout", lambda: None)
        monkeypatch.setattr(installation, "find_package", lambda name: Package(files.get))
        monkeypatch.setattr(metadata, "requires", lambda name: requires)
        installation._direct_url.cache_clear()

    yield install
    installation._direct_url.cache_clear()


def test_extra_of_a_checkout_is_installed_from_it(monkeypatch, tmp_path):
    (tmp_path / "my lab").mkdir()
    monkeypatch.setattr(installation, "checkout", lambda: tmp_path / "my lab")
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
    assert installation.commit() == "3f2a"


def test_extra_of_a_wheel_has_its_path_while_it_is_there(installed, tmp_path):
    wheel = tmp_path / "sacristan-0.3.0-py3-none-any.whl"
    wheel.touch()
    installed(url=wheel.as_uri(), archive_info={})
    assert install_command("sweeps") == f"pip install 'sacristan[sweeps] @ {wheel.as_uri()}'"
    wheel.unlink()
    assert install_command("sweeps") == "pip install 'optuna>=5' 'cmaes>=0.11'"
