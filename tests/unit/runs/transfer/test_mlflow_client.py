"""What a server of MLflow returns page by page."""

from __future__ import annotations

from sacristan.runs.transfer.targets.mlflow_client import _all_pages


class Page(list):
    def __init__(self, *results, token=None):
        super().__init__(results)
        self.token = token


def test_results_of_all_pages_are_read():
    pages = {None: Page(1, 2, token="a"), "a": Page(token="b"), "b": Page(3)}
    assert [*_all_pages(lambda page_token: pages[page_token])] == [1, 2, 3]
