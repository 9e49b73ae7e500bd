"""The commands that change runs."""

from types import SimpleNamespace

from sacristan.runs.commands import changing


def test_each_of_several_runs_that_had_the_same_id_is_named(monkeypatch, capsys):
    runs = iter((SimpleNamespace(id="1", uid="a"), SimpleNamespace(id="2", uid="b")))

    class Store:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def restore(self, key):
            return next(runs)

    monkeypatch.setattr(changing, "open_given", lambda arguments: Store())
    assert changing.Restore.main(SimpleNamespace(runs=["1", "1"], json=False)) == 0
    assert capsys.readouterr().out == "run 1 is back\nrun 1 was restored as run 2\n"
