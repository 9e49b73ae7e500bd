"""Deleting and rendering in notebooks."""

import pickle
import sys

import pytest

from sacristan.runs import Content, ExperimentLoader, MissingExtraError, StoreError, incense
from sacristan.runs.notebooks import _with_database
from sacristan.runs.notebooks.saved_artifacts import CSVArtifact, ImageArtifact, PickleArtifact


def test_pickles_are_not_loaded_and_pictures_are_shown(tmp_path):
    (tmp_path / "bomb").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    bomb = PickleArtifact("bomb.pkl", Content("bomb.pkl", (tmp_path / "bomb").open), "1")
    with pytest.raises(StoreError, match=r"'bomb.pkl' of run 1 is not loaded: loading a pickle runs the code in it"):
        bomb.render()
    assert not (tmp_path / "ran").exists()
    (tmp_path / "p.png").write_bytes(b"\x89PNG")
    stored = Content("p.png", lambda: (tmp_path / "p.png").open("rb"))
    picture = ImageArtifact("p.png", stored, "1", "image/png")
    assert picture.render()._repr_mimebundle_() == {"image/png": "iVBORw=="}
    assert list(picture.as_content_type("video/mp4").render().bundle) == ["text/html"]
    assert list(picture.as_content_type("application/pdf").render().bundle) == ["application/pdf"]
    with pytest.raises(StoreError, match="got the type 'text/x', expected one of application/pdf, image/jpeg"):
        picture.as_content_type("text/x")
    with pytest.raises(StoreError, match=r"'p.png' of run 1 is not a table in CSV"):
        picture.as_type(CSVArtifact).render()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mongodb://host", "mongodb://host/lab"),
        ("mongodb://user:pw@host:1,other:2/old?w=1&x=a/b", "mongodb://user:pw@host:1,other:2/lab?w=1&x=a/b"),
    ],
)
def test_database_goes_into_the_url(url, expected):
    assert _with_database(url, "lab") == expected
    with pytest.raises(StoreError, match="got db_name='lab' with 'my_runs', expected a mongodb:// URL"):
        ExperimentLoader("my_runs", db_name="lab")


def test_runs_are_deleted_when_the_answer_is_y(write_store, monkeypatch):
    with write_store({"seed": 1}, {"seed": 2}, {"seed": 3}) as store:
        loader = ExperimentLoader(store.where)
        questions = []
        monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or "n")
        assert loader.find_by_id(1).delete() is None
        assert questions == ["Are you sure you want to delete QuerySet([Experiment(id=1, name=made)])? [y/N]"]
        assert loader.find_by_id(1).delete(confirmed=True).runs == ["1"]
        monkeypatch.setattr("builtins.input", lambda text: "y")
        rest = loader.find_all()
        assert rest.delete().runs == ["2", "3"]
        assert list(rest) == list(loader.find_all()) == []
        loader.close()


def test_incense_that_is_not_installed_is_replaced_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "incense", None)
    with pytest.raises(MissingExtraError, match=r"incense is not installed \(.*\); runs.ExperimentLoader has the same"):
        incense("mongodb://localhost/lab")
