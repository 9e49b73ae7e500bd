from pathlib import Path

import pytest

from sacristan.configs.files import find_file, names_beside, typed_name

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture(autouse=True)
def in_a_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["digits_mlp.yaml", "iris.csv", "sweeps/lr.yaml"])
def test_file_of_the_lab_is_found_from_another_folder(name):
    assert find_file(f"./configs/{name}") == CONFIGS / name
    assert typed_name(CONFIGS / name) == f"configs/{name}"


def test_file_of_the_project_wins(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "iris.csv").symlink_to("nowhere")  # which is not there, but is meant
    assert find_file("configs/iris.csv") == Path("configs/iris.csv")
    assert find_file("configs/digits_mlp.yaml") == CONFIGS / "digits_mlp.yaml"


@pytest.mark.parametrize(
    "name",
    [
        *("", "configs", "configs/sweeps", "configs/map.py", "configs/digits.yaml", "digits_mlp.yaml"),
        *("configs/../configs/iris.csv", "mine/configs/iris.csv", "/configs/iris.csv"),
    ],
)
def test_other_names_stay_as_they_are(name):
    assert find_file(name) == Path(name)
    assert typed_name(name) == name


def test_files_of_the_lab_and_of_the_project_could_be_meant(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").touch()
    (tmp_path / "other.yaml").touch()
    names = names_beside("configs/mien.yaml")
    assert {"mine.yaml", "digits_mlp.yaml"} <= {*names}
    assert "map.py" not in names
    assert names_beside("othre.yaml") == ["other.yaml"]
    assert names_beside("configs/sweeps/rl.yaml") == ["lr.yaml"]
