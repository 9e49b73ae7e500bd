"""The page of all runs."""

import re


def ids(text):
    return re.findall(r'class="id"><a href="/runs/([^"]+)"', text)


def test_runs_are_listed_newest_first(client_of, store):
    answer = client_of(store).get("/runs")
    assert answer.status_code == 200
    assert ids(answer.text) == ["4", "3", "2", "1"]


def test_page_opens_in_a_browser(watched, serve, recorded):
    page = watched().page
    page.goto(serve(recorded))
    assert page.locator("tbody tr").count() == 4
    assert page.locator(".status.failed").count() == 1
