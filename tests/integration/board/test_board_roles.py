"""Named tokens and proxies: what a role may do, and what attackers try."""

import json
import re
import stat
import sys

import httpx
import pytest
from starlette.testclient import TestClient

from sacristan.__main__ import main
from sacristan.runs import ServerError, open_store
from sacristan.runs.board.access import Policy, Proxy, Role, TokenFile, default_tokens
from sacristan.runs.board.serving import ROUTES, BoardServer, create_app
from tests.processes import PIPE, Process

# Each request that writes, and the least role that may send it.
WRITES = {
    "/list/tag": (Role.NOTE, {"run": "1", "add": "new"}),
    "/list/rename": (Role.NOTE, {"run": "1", "name": "new"}),
    "/list/note": (Role.NOTE, {"run": "1", "note": "new"}),
    "/list/colour": (Role.NOTE, {"run": "1", "colour": "#d62728"}),
    "/list/view": (Role.NOTE, {"name": "new", "shared": "1"}),
    "/list/view/remove": (Role.NOTE, {"version": "none"}),
    "/reports/preview": (Role.NOTE, {"text": "{{value 1 lr}}"}),
    "/reports/save": (Role.NOTE, {"title": "new", "text": "x"}),
    "/reports/restore": (Role.NOTE, {"id": "none"}),
    "/reports/remove": (Role.NOTE, {"id": "none"}),
    "/artifact-alias": (Role.NOTE, {"name": "none", "alias": "best", "version": "1"}),
    "/list/discard": (Role.WRITE, {"run": "1"}),
    "/trash/restore": (Role.WRITE, {"run": "1"}),
}


@pytest.fixture
def file(tmp_path) -> TokenFile:
    return TokenFile(tmp_path / "settings" / "tokens.json")


def log_in(client, secret):
    client.cookies.clear()
    assert client.get("/runs", params={"token": secret}).status_code == 200
    return client


def test_every_write_needs_its_role(client_of, own_store, file):
    assert {route.path for route in ROUTES if "POST" in route.methods} >= WRITES.keys()
    client = client_of(own_store, tokens=file)
    for role in Role:
        log_in(client, file.add(role.word, role))
        for route in ROUTES:
            if "POST" not in route.methods:
                continue
            needed, form = WRITES.get(route.path, (Role.WRITE, {}))
            answer = client.post(route.path, data=form)
            assert (answer.status_code == 403) is (role < needed), (role, route.path, answer.text)
        with open_store(own_store) as store:
            assert [run.tags for run in store.find([("id", "==", "1")])] == {0: [[]], 1: [["new"]], 2: [["new"]]}[role]


def test_pages_offer_what_the_role_may_do(client_of, recorded, file):
    client = client_of(recorded, tokens=file)
    offered = {}
    for role in Role:
        log_in(client, file.add(role.word, role))
        text = client.get("/runs").text + client.get("/runs/1").text
        names = ("tag", "discard", "discard-dialog", "tag-dialog", "save-view", "note-form", "colour-dialog")
        offered[role] = {name for name in names if f'id="{name}"' in text}
    assert offered[Role.READ] == set()
    assert offered[Role.NOTE] == {"tag", "tag-dialog", "save-view", "note-form", "colour-dialog"}
    assert offered[Role.WRITE] == offered[Role.NOTE] | {"discard", "discard-dialog"}


def test_revoked_token_is_rejected_at_once(client_of, recorded, file):
    secret = file.add("ann", Role.NOTE)
    client = log_in(client_of(recorded, tokens=file), secret)
    other = log_in(client_of(recorded, tokens=file), file.add("bob", Role.READ))
    file.revoke("ann")
    assert client.get("/runs").status_code == 401
    assert client.post("/list/tag", data={"run": "1", "add": "late"}).status_code == 401
    assert client.get("/runs", params={"token": secret}).status_code == 401
    file.add("ann", Role.WRITE)  # another secret: the old cookie opens nothing
    assert client.get("/runs").status_code == 401
    assert other.get("/runs").status_code == 200


def test_cookie_of_a_board_or_a_digest_opens_no_other(client_of, recorded, file):
    secret = file.add("ann", Role.READ)
    first, second = client_of(recorded, tokens=file), client_of(recorded, tokens=file)
    cookie = log_in(first, secret).cookies["board"]
    digest = json.loads(file.path.read_text())["tokens"]["ann"]["sha256"]
    assert digest not in cookie
    for forged in (cookie, digest, "ann", ""):
        second.cookies.clear()
        second.cookies.set("board", forged)
        assert second.get("/runs").status_code == 401
        assert second.get("/runs", params={"token": digest}).status_code == 401


def test_file_keeps_no_secret_and_is_the_owners_alone(file):
    secret = file.add("ann", Role.READ)
    assert len(secret) == 43
    assert secret not in file.path.read_text()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file.path, file.path.parent)] == [0o600, 0o700]
    with pytest.raises(ServerError, match="there is a token 'ann' already"):
        file.add("ann", Role.WRITE)
    for name in ("", "../ann", "a b", ".x", "x" * 41, "a\n"):
        with pytest.raises(ServerError, match="got the name"):
            file.add(name, Role.READ)
    with pytest.raises(ServerError, match="there is no token 'bob'"):
        file.revoke("bob")
    file.path.write_text('{"format": 1, "tokens": {"ann": {"role": "god"}}}')
    with pytest.raises(ServerError, match="is no file of tokens"):
        file.tokens()


def test_file_that_others_can_read_is_refused(client_of, recorded, file, caplog):
    secret = file.add("ann", Role.READ)
    client = log_in(client_of(recorded, tokens=file), secret)
    file.path.chmod(0o640)
    with pytest.raises(ServerError, match="has the mode 640, so others can read or write it; run: chmod 600"):
        BoardServer(str(recorded), Policy(tokens=file), port=0)
    assert client.get("/runs").status_code == 401
    assert client.get("/runs").status_code == 401
    assert caplog.text.count("has the mode 640") == 1
    file.path.chmod(0o600)
    assert client.get("/runs").status_code == 200


def test_tokens_are_added_listed_and_revoked(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_tokens() == tmp_path / "sacristan" / "tokens.json"
    assert main(["tokens", "add", "ann", "--role", "note"]) == 0
    secret = capsys.readouterr().out.strip()
    assert TokenFile(default_tokens()).tokens()[0].opens_with(secret)
    assert main(["tokens", "list"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"ann +note", listed)
    assert secret not in listed
    assert main(["tokens", "revoke", "ann"]) == 0
    assert TokenFile(default_tokens()).tokens() == []
    with pytest.raises(SystemExit):
        main(["tokens", "revoke"])
    assert "tokens revoke needs the NAME of a token" in capsys.readouterr().err


def test_mine_is_the_account_that_a_token_names(client_of, own_store, file, capsys):
    with open_store(own_store) as store:
        account = store.get("1").document["host"]["user"]
    stores = {"one": own_store, "two": own_store}
    words = ["tokens", "add", "ann", "--user", account, "--tokens", str(file.path)]
    assert main(words) == 0
    ann = capsys.readouterr().out.strip()
    assert main(["tokens", "list", "--tokens", str(file.path)]) == 0
    assert re.search(rf"ann +read +{account}", capsys.readouterr().out)
    for client, path in ((client_of(own_store, tokens=file), "/runs"), (client_of(stores, tokens=file), "/all")):
        for secret, user, count in ((ann, account, 4), (file.add(f"bob-{path[1:]}", Role.READ), f"bob-{path[1:]}", 0)):
            client.get(path, params={"token": secret})
            [mine] = re.findall(r'id="mine"[^>]* href="([^"]*)"', client.get(path).text)
            assert mine == f"{path}?where=user%3D{user}"
            rows = set(re.findall(r'<a href="[^"]*/runs/(\d+)"', client.get(mine).text))
            assert len(rows) == count
    with pytest.raises(ServerError, match="got the user 'a"):
        file.add("eve", Role.READ, "a\nb")
    with pytest.raises(SystemExit):
        main(["tokens", "list", "--user", "x"])


@pytest.mark.slow
def test_running_board_obeys_the_command_line_and_logs_no_token(recorded, file, own_folder_of_settings):
    command = [sys.executable, "-m", "sacristan"]
    secret = file.add("ann", Role.READ)
    options = ["--store", str(recorded), "--port", "0", "--no-open", "--tokens", str(file.path)]
    process = Process([*command, "board", *options], stdout=PIPE, stderr=PIPE, text=True)
    try:
        line = process.stdout.readline()
        url = re.match(r"http://127\.0\.0\.1:\d+/", line).group()
        with httpx.Client(base_url=url, timeout=60) as client:
            assert client.get("/runs", params={"token": secret}).status_code == 200
            assert client.get("/runs").status_code == 200
            client.get("/runs/none", params={"token": secret, "where": "<<"})
            main(["tokens", "revoke", "ann", "--tokens", str(file.path)])
            assert client.get("/runs").status_code == 401
        process.terminate()
        assert process.wait(60) == 0
        assert secret not in line + process.stdout.read() + process.stderr.read()
    finally:
        process.close()


@pytest.fixture
def own_folder_of_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


def proxied(recorded, peer, **policy):
    proxy = Proxy("10.0.0.5", "X-Forwarded-User", Role.NOTE)
    app = create_app(lambda: open_store(recorded), Policy(proxy=proxy, public_name="runs.example.org", **policy))
    headers = {"origin": "https://runs.example.org", "host": "runs.example.org"}
    return TestClient(app, base_url="http://runs.example.org", headers=headers, client=(peer, 4711))


@pytest.mark.parametrize("peer", ["10.0.0.5", "::ffff:10.0.0.5", "10.0.0.6", "127.0.0.1", "::1"])
def test_header_is_believed_from_the_proxy_alone(recorded, peer):
    with proxied(recorded, peer) as client:
        is_proxy = peer.endswith("10.0.0.5")
        for forged in ({}, {"x-forwarded-for": "10.0.0.5", "forwarded": "for=10.0.0.5", "x-real-ip": "10.0.0.5"}):
            answer = client.get("/runs", headers={"x-forwarded-user": "ann", **forged})
            assert answer.status_code == (200 if is_proxy else 401)
            assert ("digits" in answer.text) is is_proxy
        assert client.get("/runs").status_code == 401
        answer = client.post("/list/discard", data={"run": "1"}, headers={"x-forwarded-user": "ann"})
        assert answer.status_code == (403 if is_proxy else 401)


def test_forged_second_header_and_other_sites_are_refused(recorded):
    with proxied(recorded, "10.0.0.5") as client:
        both = [("x-forwarded-user", "root"), ("x-forwarded-user", "ann")]
        assert client.get("/runs", headers=[*client.headers.items(), *both]).status_code == 400
        for name in ("", "a\tb", "x" * 81):
            assert client.get("/runs", headers={"x-forwarded-user": name}).status_code == 400
        ann = {"x-forwarded-user": "ann"}
        assert client.get("/runs", headers={**ann, "host": "evil.example"}).status_code == 421
        post = {"url": "/list/tag", "data": {"run": "1", "add": "x"}}
        assert client.post(**post, headers={**ann, "origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize("name", ["Élise", "Groß", "Jürgen"])
def test_users_of_a_proxy_may_have_any_letters(recorded, name):
    with proxied(recorded, "10.0.0.5") as client:
        answer = client.get("/runs", headers=[(b"x-forwarded-user", name.encode())])
        assert answer.status_code == 200
        assert f"user={name}" in answer.text


def test_strangers_see_no_store(client_of, recorded, file):
    client = client_of({"lab": str(recorded), "mine": str(recorded)}, tokens=file)
    for address in ("/static/none", "/s/lab/static/none", "/none"):
        answer = client.get(address)
        assert answer.status_code in (401, 404)
        assert str(recorded) not in answer.text
        assert "mine" not in answer.text


def test_link_with_a_token_keeps_all_conditions(client_of, recorded, file):
    client = client_of(recorded, tokens=file)
    query = [("where", "lr<1"), ("where", "seed>0"), ("token", file.add("ann", Role.READ))]
    answer = client.get("/runs", params=query, follow_redirects=False)
    assert "where=lr%3C1&amp;where=seed%3E0" in answer.text


def test_long_secrets_are_rejected_before_they_are_compared(client_of, recorded, file):
    file.add("ann", Role.READ)
    assert client_of(recorded, tokens=file).post("/login", data={"token": "x" * 100_000}).status_code in (401, 403)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--user-header", "X-User"], "--user-header and --proxy belong together"),
        (["--proxy", "10.0.0.5"], "--user-header and --proxy belong together"),
        (["--user-role", "note"], "--user-role needs --user-header and --proxy"),
        (["--proxy", "proxy.lab", "--user-header", "X-User"], "got the proxy 'proxy.lab', expected its IP address"),
        (["--proxy", "10.0.0.5", "--user-header", "X User"], "got the header 'X User'"),
        (["--tokens", "none.json"], "there are no tokens in none.json; add one"),
    ],
)
def test_half_options_are_rejected(recorded, tmp_path, monkeypatch, capsys, options, problem):
    monkeypatch.chdir(tmp_path)
    assert main(["board", "--store", str(recorded), "--no-open", "--port", "0", *options]) == 1
    assert problem in capsys.readouterr().err
