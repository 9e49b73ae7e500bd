"""The beginning of log lines."""

import io
import logging

import pytest

from sacristan.experiments.running.computed_config import log_to_stderr


@pytest.fixture(autouse=True)
def level():
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sacristan.experiments.training.progress", "progress"),
        ("sacristan.ingredients.data", "data"),
        ("sacristan.observers.mongo.delivery", "delivery"),
        ("runs", "runs"),
        ("exp", "exp"),
        ("data.make_data", "data.make_data"),
        ("numpy.linalg", "numpy.linalg"),
        ("experimental.code", "experimental.code"),
    ],
)
def test_log_names_modules_of_the_lab_by_their_last_part_alone(monkeypatch, name, shown):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to_stderr()
    logging.getLogger().handlers[0].setStream(text := io.StringIO())
    logging.getLogger(name).info("epoch %d", 3)
    assert text.getvalue() == f"INFO - {shown} - epoch 3\n"


def test_log_that_a_program_has_set_up_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [own := logging.NullHandler()])
    log_to_stderr()
    assert logging.getLogger().handlers == [own]
