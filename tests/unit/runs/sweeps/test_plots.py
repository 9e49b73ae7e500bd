"""The plots of a sweep: what is drawn, in values that people know, and a page that needs nothing from elsewhere."""

import math
import re

import optuna
import pytest

from sacristan.configs.packages import install_command
from sacristan.runs import MissingExtraError, PlotError
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study.points import suggest
from sacristan.runs.sweeps.views import plots
from sacristan.runs.sweeps.views.pictures import _contours, _Scale
from sacristan.runs.sweeps.views.plots import draw
from sacristan.runs.sweeps.views.study_view import FANOVA, IMPURITY, make_study_view, thinned

PARAMETERS = {
    "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
    "noise": {"distribution": "normal", "mu": 100.0},
    # Dollars start no formula.
    "name": {"values": ["$a_{$", "adam"], "probabilities": [0.5, 0.5]},
    "momentum": {"min": 0.0, "max": 0.9, "when": {"name": "$a_{$"}},
}
PNG = b"\x89PNG\r\n\x1a\n"


def searched(spec, num, values):
    """Return a study of so many trials, every fourth of which is pruned."""
    goals = [objective.goal for objective in spec.objectives]
    study = optuna.create_study(directions=goals, sampler=optuna.samplers.RandomSampler(0))
    for number in range(num):
        trial = study.ask()
        point = suggest(spec, trial)
        if len(goals) == 1:
            for step in range(3):
                trial.report(values(point)[0] + 1 / (step + 1), step)
        if number % 4 == 3 and len(goals) == 1:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, values(point))
    return study


@pytest.fixture(scope="module")
def spec():
    return read_spec({"method": "random", "metric": {"name": "val/loss"}, "parameters": PARAMETERS})


@pytest.fixture(scope="module")
def study(spec):
    return searched(spec, 16, lambda point: [point["noise"] + point["lr"]])


@pytest.fixture(scope="module")
def drawn(study, spec, tmp_path_factory):
    return draw(study, tmp_path_factory.mktemp("plots") / "new" / "folder", "<lr> & $digits", spec)


@pytest.mark.slow
def test_page_and_pictures_are_drawn(drawn):
    names = ["history", "parallel", "importances", "slices", "contours", "intermediate"]
    assert [path.name for path in drawn] == ["sweep.html", *(f"{name}.png" for name in names)]
    assert all(path.read_bytes().startswith(PNG) for path in drawn[1:])


@pytest.mark.slow
def test_page_needs_nothing_from_elsewhere(drawn):
    page = drawn[0].read_text(encoding="utf-8")
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)", page) == []
    assert page.count("plotly.js v") == 1
    assert "<h1>&lt;lr&gt; &amp; $digits</h1>" in page
    assert "16 trials: 12 complete, 4 pruned" in page
    titles = ["History", "Parallel coordinates", "Importances", "Slices", "Contours", "Intermediate values"]
    assert [title for title in titles if f'"text":"{title}: val' not in page] == []
    assert FANOVA in page
    assert IMPURITY in page


@pytest.mark.slow
def test_values_are_drawn_in_place_of_quantiles(study, spec, drawn):
    readable = make_study_view(study, spec)
    assert "(quantile)" not in drawn[0].read_text(encoding="utf-8")
    assert sorted(readable.parameters) == ["lr", "momentum", "name", "noise"]
    assert sorted(readable.common) == ["lr", "name", "noise"]
    first = readable.study.trials[0].params
    again = optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask()
    assert {name: first[name] for name in first} == suggest(spec, again)
    assert {trial.params["name"] for trial in readable.complete} == {"$a_{$", "adam"}
    assert all(97 < trial.params["noise"] < 103 for trial in readable.complete)


def test_importances_name_what_makes_the_difference(study, spec):
    [importances] = make_study_view(study, spec).importances
    assert list(importances) == [FANOVA, IMPURITY]
    assert [max(of, key=of.get) for of in importances.values()] == ["noise", "noise"]


def test_axes_are_numbers_logarithms_or_categories(study, spec):
    view = make_study_view(study, spec)
    lr, noise, name = (_Scale(view, each) for each in ("lr", "noise", "name"))
    assert (lr.is_log, noise.is_log, name.is_log) == (True, False, False)
    assert (lr.categories, noise.categories, name.categories) == ([], [], ["$a_{$", "adam"])
    assert (lr.is_ordered, name.is_ordered) == (True, False)
    assert name.ticks() == [(0.0, "$a_{$"), (1.0, "adam")]
    for scale in (lr, noise):
        assert [place for place, _ in scale.ticks()] == pytest.approx([0.0, 0.5, 1.0])
        places = [scale.place(trial) for trial in view.complete]
        assert (min(places), max(places)) == (0.0, 1.0)
    momentum = _Scale(view, "momentum")
    lacking = [trial for trial in view.complete if trial.params["name"] == "adam"]
    assert lacking
    assert all(math.isnan(momentum.place(trial)) for trial in lacking)


def test_without_a_spec_the_study_is_drawn_as_it_is(study):
    readable = make_study_view(study, None)
    assert readable.metrics == ("value",)
    assert "noise (quantile)" in readable.parameters


def test_many_trials_are_thinned_evenly(study):
    trials = tuple(study.get_trials(deepcopy=False))
    few, shown = thinned(study, trials, 4)
    assert [trial.params["lr"] for trial in shown] == [trials[number].params["lr"] for number in (0, 5, 10, 15)]
    assert len(few.trials) == 4
    assert thinned(study, trials, 16) == (study, trials)


@pytest.mark.slow
def test_several_objectives_have_a_front(tmp_path):
    metrics = [{"name": "loss"}, {"name": "speed", "goal": "maximize"}]
    parameters = {"lr": {"min": 0.0, "max": 1.0}}
    spec = read_spec({"method": "random", "metrics": metrics, "parameters": parameters})
    found = draw(searched(spec, 5, lambda point: [point["lr"], point["lr"] ** 2]), tmp_path, "two", spec)
    assert [path.name for path in found] == [
        "sweep.html",
        "history.png",
        "pareto.png",
        "parallel.png",
        "importances.png",
        "slices.png",
    ]
    assert "Pareto" in found[0].read_text(encoding="utf-8")


@pytest.mark.parametrize(("num", "shape", "num_pairs"), [(2, (1, 1), 1), (3, (1, 3), 3), (4, (2, 3), 6)])
def test_each_pair_of_parameters_has_contours_three_to_a_row(num, shape, num_pairs):
    parameters = {name: {"min": 0.0, "max": 1.0} for name in "abcd"[:num]}
    spec = read_spec({"method": "random", "metric": {"name": "loss"}, "parameters": parameters})
    *plots, bar = _contours(make_study_view(searched(spec, 8, lambda point: [point["a"]]), spec)).axes
    assert plots[0].get_gridspec().get_geometry() == shape
    assert len({frozenset((axes.get_xlabel(), axes.get_ylabel())) for axes in plots if axes.axison}) == num_pairs
    assert all(len(axes.collections) > 1 for axes in plots)  # dots, and the colors between them
    assert bar.get_ylabel() == "loss"


@pytest.mark.slow
def test_few_trials_are_drawn_as_far_as_they_go(tmp_path):
    parameters = {"x": {"values": [1, "1", None, [2]]}, "y": {"value": 3}, "z_": {"min": 0, "max": 3}}
    spec = read_spec({"method": "random", "metric": {"name": "$loss_{"}, "parameters": parameters})
    found = draw(searched(spec, 1, lambda point: [1.0]), tmp_path, "few", spec)
    names = ["history", "parallel", "slices", "contours", "intermediate"]
    assert [path.name for path in found] == ["sweep.html", *(f"{name}.png" for name in names)]


def test_study_without_an_ended_trial_is_refused(tmp_path, spec):
    study = optuna.create_study()
    with pytest.raises(PlotError, match="there is nothing to plot: no trials; wait until a trial has ended"):
        draw(study, tmp_path, "none", spec)
    suggest(spec, study.ask())
    with pytest.raises(PlotError, match="there is nothing to plot: 1 trial: 1 running; wait"):
        draw(study, tmp_path, "none", spec)


def test_folder_that_cannot_be_written_is_refused_before_anything_is_drawn(monkeypatch, tmp_path, study, spec):
    monkeypatch.setattr(plots, "_page", lambda *_: pytest.fail("it is drawn"))
    (tmp_path / "file").write_text("")
    with pytest.raises(PlotError, match=r"file cannot be written .*give another folder"):
        draw(study, tmp_path / "file", "none", spec)


def test_missing_package_is_named_with_its_extra(monkeypatch, tmp_path, study, spec):
    monkeypatch.setitem(__import__("sys").modules, "plotly", None)
    with pytest.raises(
        MissingExtraError,
        match=f"a plot of a sweep needs the package 'plotly', .*{re.escape(install_command('sweeps'))}",
    ):
        draw(study, tmp_path, "none", spec)
