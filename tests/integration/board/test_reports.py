"""Reports on the board: written, looked at, exported; by two users, and against hostile text."""

import json
import re
import shutil

import pytest

from sacristan.__main__ import main
from sacristan.runs import open_store
from sacristan.runs.board.access import Role, TokenFile
from sacristan.runs.comparison.report_pages import as_html, as_markdown, rendered
from sacristan.runs.drawing import Markup
from sacristan.runs.stores.small_documents import Report
from tests.integration.board.conftest import database_of
from tests.integration.board.test_workspace import assert_accessible

TEXT = """## Result

At best {{value val/accuracy.max where="status=COMPLETED" sort=-val/accuracy.max digits=2}}, run 2
has `{{value 2 lr}}` {{value 2 lr}}.

{{runs where="lr<1" columns="lr, status, model.name" limit=3}}
{{curves train/loss where="lr<1" log_y=yes}}

| lr | accuracy |
|---|---|
| 0.01 | {{value 2 val/accuracy.max}} |

{{scatter lr val/accuracy.max}}

{{rans}}

{{value 1 lrr}}
"""
HOSTILE = """<script>document.title = "pwned"</script> <img src=x onerror=alert(1)>

[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](data:text/html,<script>alert(1)</script>) <javascript:alert(1)>
![d](http://evil.example/d.png) ![e](//evil.example/e.png) ![f](data:image/svg+xml,<svg onload=alert(1)>)
![g](/content?"onerror=alert(1))
[h]: http://evil.example "x"
{{value 1 "<img src=x onerror=alert(1)>"}} {{<script>alert(1)</script>}} [i]({{value 1 lr}} "<b>")

{{runs columns="<script>"}}
{{curves "<script>alert(1)</script>"}}
{{scatter "`<b>`" "`<i>`"}}
"""


def saved(where, text=TEXT, title="Learning rates", **more):
    with open_store(where) as store:
        return store.reports.save(Report(title, text, author="ann", **more))


def plain(html):
    return " ".join(re.sub("<[^>]+>", " ", html).split())


def test_report_shows_tables_values_and_errors_in_their_place(client_of, own_store):
    report = saved(own_store)
    client = client_of(own_store)
    assert f'href="/reports/{report.id}">Learning rates</a>' in client.get("/reports").text
    answer = client.get(f"/reports/{report.id}")
    assert answer.status_code == 200
    body = answer.text[answer.text.index("<article") :]
    assert "At best 1.1 , run 2 has {{value 2 lr}} 0.01 ." in plain(body)
    assert '<a href="/runs/2" title="run 2, lr">0.01</a>' in body
    assert re.findall(r'<th scope="row"><a href="/runs/(\d)"', body) == ["4", "3", "2"]
    assert "3 of 4 runs" in body
    assert 'data-url="/workspace/panel?run=4&amp;run=3&amp;run=2&amp;run=1&amp;log_y=1"' in body
    assert 'data-panel="scatter(lr, val/accuracy.max)"' in body
    assert "<code>{{rans}}</code> there is no block &#x27;rans&#x27;; did you mean runs?" in body
    assert "<code>{{value 1 lrr}}</code> no run has a field &#x27;lrr&#x27;; did you mean lr?" in body
    known = {"if-none-match": answer.headers["etag"]}
    assert client.get(f"/reports/{report.id}", headers=known).status_code == 304


def test_report_is_one_html_file_and_markdown_for_an_appendix(own_store, client_of, tmp_path, watched):
    report = saved(own_store)
    client = client_of(own_store)
    answer = client.get(f"/reports/{report.id}/file?format=md")
    assert answer.headers["content-disposition"] == 'attachment; filename="Learning_rates.md"'
    text = re.sub("\n{3,}", "\n\n", re.sub("base64,[A-Za-z0-9+/=]+", "base64,...", answer.text))
    assert text == (
        "# Learning rates\n\n## Result\n\nAt best 1.1, run 2\nhas `{{value 2 lr}}` 0.01.\n\n"
        "| run | lr | status | model.name |\n| --- | ---: | --- | --- |\n| 4 | 0.1 | COMPLETED | cnn |\n"
        "| 3 | 0.1 | FAILED | mlp |\n| 2 | 0.01 | COMPLETED | mlp |\n\n3 of 4 runs\n\n"
        "![train/loss](data:image/svg+xml;base64,...)\n\n| lr | accuracy |\n|---|---|\n| 0.01 | 0.985 |\n\n"
        "![scatter(lr, val/accuracy.max)](data:image/svg+xml;base64,...)\n\n"
        "**\\{\\{rans\\}\\} there is no block 'rans'; did you mean runs?**\n\n"
        "**\\{\\{value 1 lrr\\}\\} no run has a field 'lrr'; did you mean lr?**\n"
    )
    page = client.get(f"/reports/{report.id}/file?format=html").text
    assert page.count("<svg") == 2
    assert "<script" not in page
    (tmp_path / "report.html").write_text(page)
    watch = watched()
    watch.page.set_viewport_size({"width": 390, "height": 800})
    watch.page.goto(f"file://{tmp_path}/report.html")
    assert watch.page.locator("h1").inner_text() == "Learning rates"
    assert_accessible(watch.page)
    assert watch.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert watch.requests == [f"file://{tmp_path}/report.html", "data:,"][: len(watch.requests)]


def test_report_of_a_store_or_a_file_is_exported_by_the_command(own_store, tmp_path, capsys):
    saved(own_store)
    for name in ("report.md", "report.html"):
        assert main(["--store", own_store, "report", "--page", "Learning rates", "-o", str(tmp_path / name)]) == 0
    assert "| 0.01 | 0.985 |" in (tmp_path / "report.md").read_text()
    assert "<h1>Learning rates</h1>" in (tmp_path / "report.html").read_text()
    (tmp_path / "appendix.md").write_text("# Appendix\n\nlr {{value 2 lr}}\n")
    assert (
        main(["--store", own_store, "report", "--page", str(tmp_path / "appendix.md"), "-o", str(tmp_path / "a.md")])
        == 0
    )
    assert (tmp_path / "a.md").read_text() == "# Appendix\n\nlr 0.01\n"
    capsys.readouterr()
    for words, problem in (
        (["--page", "Learning rate", "-o", str(tmp_path / "b.md")], "did you mean Learning rates?"),
        (["--page", "Learning rates", "1", "-o", str(tmp_path / "b.md")], "--page: expected no runs"),
        (["--page", "Learning rates", "-o", str(tmp_path / "b.pdf")], "expected a name that ends in .html or .md"),
        (["--page", "Learning rates", "-o", str(tmp_path / "a.md")], "already exists; choose another name, or use"),
    ):
        assert main(["--store", own_store, "report", *words]) == 1
        assert problem in capsys.readouterr().err


def test_private_report_and_old_version_are_for_those_who_may_see_them(client_of, own_store, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    secrets = {name: tokens.add(name, role) for name, role in (("ann", Role.NOTE), ("bob", Role.READ))}
    client = client_of(own_store, tokens=tokens)
    client.get("/runs", params={"token": secrets["ann"]})
    form = {"title": "Mine", "text": "first"}
    url = client.post("/reports/save", data=form).json()["url"]
    id = url.rpartition("/")[2]
    again = client.post("/reports/save", data={"id": id, "version": "1", "title": "Mine", "text": "second"})
    assert again.json() == {"done": "saved", "url": url, "version": 2}
    assert plain(client.get(f"{url}/versions").text).count(" ann ") == 2
    assert "first" in client.get(f"{url}?version=1").text
    back = client.post("/reports/restore", data={"id": id, "number": "1", "version": "2"})
    assert back.json()["done"] == "version 1 is back"
    assert client.get(f"{url}/edit").text.count("checked") == 0
    late = client.post("/reports/save", data={"id": id, "version": "2", "title": "Mine", "text": "late"})
    assert late.status_code == 409
    assert {name: late.json()[name] for name in ("text", "version")} == {"text": "first", "version": 3}
    assert late.json()["error"] == "ann saved version 3 while you were writing; combine both, and save"
    for method, path, data in (
        ("post", "/reports/save", {"version": "x", "id": id}),
        ("get", f"{url}?version=99", None),
    ):
        answer = client.request(method, path, data=data)
        assert answer.status_code in (400, 409), answer.text
    client.get("/runs", params={"token": secrets["bob"]})
    for path in (url, f"{url}/versions", f"{url}/file?format=md", f"{url}?version=1"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"].partition(";")[0]) == (
            409,
            "there is no such report, or it is private",
        )
    assert client.get(f"{url}/edit").status_code == 403
    assert "Mine" not in client.get("/reports").text


def test_hostile_report_runs_and_loads_nothing(recorded, tmp_path, watched, serve):
    where = str(shutil.copytree(recorded, tmp_path / "store"))
    report = saved(where, HOSTILE, title="</title><script>document.title='pwned'</script>")
    base = serve(where)
    watch = watched()
    page = watch.page
    page.goto(f"{base}/reports/{report.id}")
    page.wait_for_selector("figure[data-ready]")
    assert page.title().startswith("</title><script>")
    assert (
        page.locator("article script, article [onerror], article [onload], article a[href^='javascript' i]").count()
        == 0
    )
    assert page.locator("article img").count() <= 1  # that of the board itself
    assert page.locator("article a[href^='data:text']").count() == 0
    assert {link.get_attribute("rel") for link in page.locator("article a[href^='http:']").all()} == {
        "noopener noreferrer nofollow"
    }
    watch.errors[:] = [error for error in watch.errors if "/content?" not in error and "panel?" not in error]
    with open_store(where) as store:
        (tmp_path / "report.html").write_text(as_html(store, report))
        assert "evil" in as_markdown(store, report)
    page.goto(f"file://{tmp_path}/report.html")
    assert page.title().startswith("</title><script>")
    assert page.locator("script, [onerror], [onload], a[href^='javascript' i]").count() == 0
    watch.errors[:] = [error for error in watch.errors if "ERR_FILE_NOT_FOUND" not in error]


@pytest.mark.parametrize(
    "text", ["{{" * 3000, "[" * 3000, "> " * 3000, "{{value 1 lr}} " * 300, "`{{`" * 1000, "\ue000{{\x00}}"]
)
def test_any_text_is_a_page(text):
    html = rendered(text, lambda block: Markup("<b>x</b>"))
    assert html.count("<b>x</b>") == (200 if "value" in text else 0)


@pytest.mark.slow
def test_two_who_edit_a_report_are_told_and_lose_nothing(own_store, watched, serve, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    secrets = {name: tokens.add(name, Role.NOTE) for name in ("ann", "bob")}
    base = serve(own_store, tokens=tokens)
    windows = watched(), watched(locale="en-GB")  # another context: cookies of its own
    ann, bob = (window.page for window in windows)
    ann.goto(f"{base}/runs?token={secrets['ann']}")
    bob.goto(f"{base}/runs?token={secrets['bob']}")
    for window in (ann, bob):
        window.wait_for_selector("tr[data-run='1']")  # the login has led there
    ann.goto(f"{base}/reports")
    ann.keyboard.press("n")
    ann.wait_for_url("**/reports/new")
    assert ann.evaluate("document.activeElement.name") == "title"
    ann.keyboard.type("Of both")
    ann.fill("#report-text", "lr {{value 2 lr}}\n")
    ann.wait_for_selector("#preview :text('0.01')")
    ann.click("summary:text('Blocks')")
    ann.click("[data-insert^='{{curves']")
    ann.wait_for_selector("#preview .problem:has-text('val/loss')")
    assert_accessible(ann)
    ann.check("[name=shared]")
    ann.focus("#report-text")
    ann.keyboard.press("Control+Enter")
    ann.wait_for_selector("article.report")
    url = ann.url
    bob.goto(url)
    bob.keyboard.press("e")
    bob.wait_for_url("**/edit")
    ann.keyboard.press("e")
    ann.wait_for_url("**/edit")
    ann.fill("#report-text", "of ann")
    bob.fill("#report-text", "of bob")
    ann.keyboard.press("Control+s")
    ann.wait_for_selector("article.report :text('of ann')")
    bob.keyboard.press("Control+Enter")
    bob.wait_for_selector("#report-problem:has-text('ann saved version 2 while you were writing')")
    assert bob.input_value("#report-text") == "of bob"
    assert bob.locator("#theirs pre").inner_text() == "of ann"
    assert_accessible(bob)
    bob.reload()  # or the browser crashed
    bob.click("#take-draft")
    assert bob.input_value("#report-text") == "of bob"
    tokens.revoke("bob")
    bob.keyboard.press("Control+Enter")
    bob.wait_for_selector("#report-problem:has-text('Your login has expired or was revoked.') a")
    assert bob.input_value("#report-text") == "of bob"
    secret = tokens.add("bob", Role.NOTE)
    with bob.expect_popup() as popup:
        bob.click("#report-problem a")
    popup.value.fill("#token", secret)
    popup.value.click("button")
    popup.value.wait_for_selector("#report-form")
    popup.value.close()
    bob.focus("#report-text")
    bob.keyboard.press("Control+Enter")
    bob.wait_for_selector("article.report :text('of bob')")
    ann.wait_for_selector("article.report :text('of bob')")  # which follows
    ann.keyboard.press("v")
    ann.click("a:text-is('2')")
    ann.wait_for_selector("article.report :text('of ann')")
    ann.click("#restore")
    ann.wait_for_selector("#report-head :text('version 4 by ann')")
    ann.click("#remove")
    ann.click("#remove-now")
    ann.wait_for_selector(":text('There are no reports yet')")
    bob.wait_for_selector("#outage:has-text('there is no such report')")
    for window in windows:
        window.errors[:] = [error for error in window.errors if not re.search("409|401", error)]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_is_accessible_follows_its_runs_and_fits_a_phone(own_store, watched, serve, scheme):
    report = saved(own_store, TEXT.replace("{{rans}}", "{{curves train/loss group=lr}}"))
    page = watched(viewport={"width": 1280, "height": 3000}, color_scheme=scheme).page
    page.goto(f"{serve(own_store)}/reports/{report.id}")
    page.wait_for_function("() => document.querySelectorAll('figure[data-ready]').length === 3")
    assert page.locator("figure .legend li").count() == 6
    assert_accessible(page)
    page.set_viewport_size({"width": 390, "height": 3000})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 390")
    with open_store(own_store) as store:
        store.discard([store.get("4")])
    page.wait_for_function("() => document.querySelectorAll('article tbody')[0].rows[0].cells[0].textContent === '3'")
    page.wait_for_function("() => document.querySelector('figure').dataset.drawn === '3'")


@pytest.mark.slow
def test_report_of_a_killed_database_stays_and_goes_on(recorded, watched, serve, mongod):
    mongod.start()
    made = database_of(recorded, mongod.url)
    where = next(made)
    report = saved(where, TEXT + "\n\nmore" * 60 + "\n\n{{curves val/accuracy}}\n")
    watch = watched()
    page = watch.page
    page.goto(f"{serve(f'{where}?serverSelectionTimeoutMS=500')}/reports/{report.id}")
    page.wait_for_selector("figure[data-ready]")
    mongod.kill()
    page.wait_for_selector("#outage:has-text('This may be out of date')", timeout=60_000)
    assert page.locator("article tbody tr").count() == 4
    last = page.locator("article figure").last  # which nobody has seen yet
    last.scroll_into_view_if_needed()
    last.locator(".notes.problem").wait_for(timeout=60_000)
    mongod.start()
    last.locator("g[data-key]").first.wait_for(state="attached", timeout=60_000)
    page.wait_for_selector("#outage:text-is('')", state="attached", timeout=60_000)
    watch.errors[:] = [error for error in watch.errors if "503" not in error]
    assert list(made) == []


def test_report_begins_with_the_view_or_the_selection(own_store, watched, serve):
    page = watched().page
    page.goto(
        f"{serve(own_store)}/runs?where=lr<0.5&where=status%3DCOMPLETED&sort=lr&column=lr&panel=scatter(lr,%20result)"
    )
    page.keyboard.press("w")
    page.click("#write-report")
    page.wait_for_selector("#report-text")
    assert page.input_value("#report-text") == (
        '{{runs where="lr<0.5 and status=COMPLETED" sort=lr columns=lr}}\n\n'
        '{{scatter lr result where="lr<0.5 and status=COMPLETED" sort=lr}}\n'
    )
    page.goto(f"{serve(own_store)}/runs")
    page.check("tr[data-run='1'] input")
    page.check("tr[data-run='2'] input")
    page.click("#export")
    page.click("#export-written")
    page.wait_for_selector("#report-text")
    assert page.input_value("#report-text") == '{{runs run="2, 1"}}\n\n{{curves val/accuracy run="2, 1"}}\n'


def test_json_of_reports_is_no_view(client_of, own_store):
    saved(own_store)
    client = client_of(own_store)
    assert client.get("/list/views").json() == {"views": []}
    assert json.loads(client.get("/list/ids").text)["ids"] == ["4", "3", "2", "1"]
