"""Permissions of visitors of the board, and the headers of every answer."""

import re

import pytest

from sacristan.runs import StoreError
from sacristan.runs.board.access import Policy, check_address
from sacristan.runs.board.rendering import plotly_url, static_url

TOKEN = "a token that nobody guesses"


@pytest.mark.parametrize("path", ["/", "/runs", "/runs/none", "/nowhere", "/static/board.js"])
def test_every_answer_says_what_browsers_may_do(client_of, recorded, path):
    answer = client_of(recorded).get(path, follow_redirects=False)
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert policy.count("unsafe") == policy.count("style-src 'self' 'unsafe-inline'") == 1
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "192.0.2.1"])
def test_other_names_of_this_machine_are_refused(client_of, recorded, host):
    assert client_of(recorded).get("/runs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8765", "127.0.0.2"])
def test_names_of_this_machine_are_answered_on_any_port(client_of, recorded, host):
    assert client_of(recorded).get("/runs", headers={"host": host}).status_code == 200


def test_nothing_is_answered_without_the_token(client_of, recorded):
    client = client_of(recorded, token=TOKEN)
    answer = client.get("/runs?where=lr=0.1")
    assert answer.status_code == 401
    assert "digits" not in answer.text
    assert 'value="/runs?where=lr=0.1"' in answer.text
    for path in ("/static/board.css", "/favicon.ico"):
        assert client.get(path).status_code == 200


def test_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read(client_of, recorded):
    client = client_of(recorded, token=TOKEN)
    answer = client.get("/runs", params={"token": TOKEN, "where": "lr=0.1"})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert 'url=/runs?where=lr%3D0.1"' in answer.text
    assert client.get("/runs").status_code == 200


def test_wrong_token_is_refused(client_of, recorded):
    client = client_of(recorded, token=TOKEN)
    assert client.get("/runs?token=wrong").status_code == 401
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    client.cookies.set("board", "wrong")
    assert client.get("/runs").status_code == 401


@pytest.mark.parametrize("target", ["/runs?sort=lr", "//evil.example", "https://evil.example", "/\\evil.example", None])
def test_login_leads_to_a_page_of_the_board(client_of, recorded, target):
    client = client_of(recorded, token=TOKEN)
    data = {"token": TOKEN, **({} if target is None else {"next": target})}
    answer = client.post("/login", data=data, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == (target if target == "/runs?sort=lr" else "/")
    assert client.get("/runs").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "//evil.example", "/%2F/evil.example/"])
def test_link_with_the_token_leads_to_a_page_of_the_board(client_of, recorded, path):
    client = client_of(recorded, token=TOKEN)
    answer = client.get(f"http://127.0.0.1{path}", params={"token": TOKEN})
    assert answer.status_code == 200
    assert 'content="0; url=/"' in answer.text
    assert "evil" not in answer.text


def test_login_of_more_than_a_request_may_send_is_refused(client_of, recorded):
    answer = client_of(recorded, token=TOKEN).post("/login", data={"token": "x" * 2**20})
    assert (answer.status_code, answer.text) == (413, "refused: got a request of more than 1048576 bytes\n")


@pytest.mark.parametrize("accepted", ["*/*", "text/html"])
def test_form_of_more_than_a_request_may_send_is_refused_in_a_sentence(client_of, recorded, accepted):
    answer = client_of(recorded).post("/list/note", data={"note": "x" * 2**20}, headers={"accept": accepted})
    assert answer.status_code == 413
    assert "got a request of more than 1048576 bytes" in answer.text


def test_link_on_another_site_finds_the_one_who_is_logged_in(client_of, recorded):
    answer = client_of(recorded, token=TOKEN).get("/runs", headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0; url=/runs"' in answer.text
    assert "digits" not in answer.text


@pytest.mark.parametrize("headers", [{"origin": ""}, {"origin": "null"}, {"origin": "http://evil.example"}])
def test_what_writes_must_come_from_a_page_of_the_board(client_of, recorded, headers):
    assert client_of(recorded).post("/runs/1/note", data={"note": "x"}, headers=headers).status_code == 403


def test_read_only_board_writes_nothing(client_of, recorded):
    client = client_of(recorded, is_read_only=True)
    answer = client.post("/runs/1/note", data={"note": "x"})
    assert answer.status_code == 403
    assert "--read-only" in answer.text


def test_other_addresses_want_a_token_that_cannot_be_guessed():
    for host in ("localhost", "::1"):
        check_address(Policy(host))
    check_address(Policy("0.0.0.0", token=TOKEN))
    with pytest.raises(StoreError, match=r"on 0\.0\.0\.0, others could read and change the runs; add --token"):
        check_address(Policy("0.0.0.0"))
    with pytest.raises(StoreError, match="the token has 5 characters"):
        check_address(Policy(token="short"))


def test_browsers_keep_what_has_not_changed(client_of, recorded):
    client = client_of(recorded)
    tag = client.get("/static/board.js").headers["etag"]
    again = client.get("/static/board.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get("/static/board.js", headers={"if-none-match": '"another"'}).status_code == 200
    page = client.get("/runs").text
    scripts = re.findall(r'(?:src|href)="(/static/\w+/[\w.]+)"', page)
    names = {url.rpartition("/")[2] for url in scripts}
    # All scripts are one file, which browsers keep as long as no file of the board changes.
    assert names == {"board.css", "plots.css", "workspace.css", "icon.svg", "scripts.js"}
    assert len(set(scripts)) == len(names)
    for url in set(scripts):
        answer = client.get(url)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
    older = client.get("/static/older/board.js")
    assert (older.status_code, older.headers["cache-control"]) == (200, "no-cache")
    assert not re.findall(r'"/static/[\w.]+"', page)  # where scripts would be run twice
    for url in (plotly_url(), static_url("scripts.js")):
        script = client.get(url)
        assert "immutable" in script.headers["cache-control"]
        assert script.headers["content-encoding"] == "gzip"
        plain = client.get(url, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == script.content
