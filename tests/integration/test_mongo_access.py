"""Passwords, rights and TLS of a real server: one clear line each, no credentials anywhere, and nothing is lost."""

import re
import shutil
import subprocess

import bson
import gridfs
import pymongo
import pytest

from sacristan.__main__ import main as runs_command
from sacristan.runs import Mongod

USER, PASSWORD = "me-user", "p%40ss%2Fw0rd%3F"  # p@ss/w0rd?
PLAIN = "p@ss/w0rd?"
SECRETS = (PASSWORD.encode(), PLAIN.encode(), b"w0rd", USER.encode())

RECORDS = """
import pathlib
pathlib.Path("made.txt").write_text("made")
ex.observers.append(FileObserver("runs"))
@ex.automain
def main(_run):
    _run.add_artifact("made.txt")
    _run.info["long"] = "x" * 1_000_000
    for step in range(300):
        _run.log_scalar("loss", step / 7, step)
        if step == 100:
            pathlib.Path("reached").touch()
            while pathlib.Path("wait").exists(): time.sleep(0.02)
    return 1
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that asks for passwords; client of its administrator."""
    with Mongod(tmp_path_factory.mktemp("guarded"), options=["--auth"]) as server:
        with pymongo.MongoClient(server.url) as first:
            first.admin.command("createUser", "root", pwd="root", roles=["root"])
        with pymongo.MongoClient(server.url, username="root", password="root") as admin:
            yield server, admin


@pytest.fixture
def login(guarded, request):
    """Make a user with `roles` or `actions`, and return the URL for it: `login(roles)`."""
    server, admin = guarded
    made = []

    def make(roles=(), actions=()):
        if actions:
            everywhere = {"db": "lab", "collection": ""}
            privileges = [{"resource": everywhere, "actions": list(actions)}]
            admin.lab.command("createRole", "limited", privileges=privileges, roles=[])
            made.append(("dropRole", "limited"))
        roles = [*roles, *(["limited"] if actions else [])]
        admin.lab.command("createUser", USER, pwd=PLAIN, roles=roles)
        made.append(("dropUser", USER))
        return f"mongodb://{USER}:{PASSWORD}@127.0.0.1:{server.port}/lab"

    yield make
    for command, name in reversed(made):
        admin.lab.command(command, name)
    admin.drop_database("lab")


def assert_no_secret_below(folder, admin=None):
    # The command line that the test gave is not the record's.
    for path in (path for path in folder.rglob("*") if path.is_file() and path.name != "recorded.py"):
        content = path.read_bytes()
        assert [secret for secret in SECRETS if secret in content] == [], path
    for collection in admin.lab.list_collection_names() if admin is not None else ():
        for document in admin.lab[collection].find():
            content = bson.encode(document)
            assert [secret for secret in SECRETS if secret in content] == [], collection


def lines_about_mongo(stderr, count):
    lines = [line for line in stderr.splitlines() if "MongoDB at" in line]
    assert len(lines) == count, stderr
    return lines


def assert_delivered(database, run_id=1):
    run = database.runs.find_one({"_id": run_id})
    assert (run["status"], run["result"]) == ("COMPLETED", 1)
    assert database.metrics.find_one({"run_id": run_id})["steps"] == list(range(300))
    files = gridfs.GridFS(database)
    assert files.get(run["artifacts"][0]["file_id"]).read() == b"made"
    assert len(files.get(bson.ObjectId(run["info"]["long"]["stored_as_file"])).read()) > 1_000_000


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace("w0rd", "w0rd0"), "the user or password is wrong"),
        (lambda url: url.replace("/lab", "/other?authSource=lab"), "the user has no rights to find in other.runs"),
        (lambda url: url.replace(f"{USER}:{PASSWORD}@", ""), "the server requires a user and a password"),
    ],
    ids=["password", "rights", "nobody"],
)
def test_refused_user_is_one_line_and_sync_delivers_later(tmp_path, guarded, login, start, capsys, change, words):
    url = login(["readWrite"])
    refused = change(url)
    stderr = start(tmp_path, RECORDS, "-m", refused).finish()
    first, last = lines_about_mongo(stderr, 2)
    assert words in first
    assert "not reachable" not in stderr
    assert "sacristan sync runs" in last
    assert "Traceback" not in stderr
    assert runs_command(["sync", str(tmp_path / "runs"), "--url", refused]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.splitlines()[1:] == ["error: 1 of 1 runs could not be delivered"]
    assert runs_command(["sync", str(tmp_path / "runs"), "--url", url]) == 0
    out = capsys.readouterr().out
    assert "delivered as run 1" in out
    assert [secret for secret in SECRETS if secret.decode() in stderr + error + out] == []
    assert_delivered(guarded[1].lab)
    assert_no_secret_below(tmp_path, guarded[1])


@pytest.mark.slow
def test_sync_without_the_password_says_that_one_is_needed(tmp_path, login, start, capsys):
    url = login(["readWrite"])
    start(tmp_path, RECORDS, "-m", url.replace("w0rd", "w0rd0")).finish()
    assert runs_command(["sync", str(tmp_path / "runs")]) == 1
    assert "requires a user and a password; give a URL with them" in capsys.readouterr().err


@pytest.mark.slow
def test_rights_taken_away_in_the_middle_are_one_line_and_given_back_nothing_is_lost(
    tmp_path, guarded, login, start, wait_for
):
    _, admin = guarded
    url = login(["readWrite"])
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "wait").touch()
    recorded = start(tmp_path, RECORDS, "-m", url)
    wait_for(lambda: admin.lab.metrics.find_one({"count": {"$gt": 50}}), "points in the database")
    admin.lab.command("revokeRolesFromUser", USER, roles=["readWrite"])
    wait_for(lambda: "no rights" in recorded.err.read_text(), "the refusal to be noticed")
    admin.lab.command("grantRolesToUser", USER, roles=["readWrite"])
    wait_for(lambda: "back, and all" in recorded.err.read_text(), "the rights to be noticed")
    (tmp_path / "wait").unlink()
    stderr = recorded.finish()
    lines_about_mongo(stderr, 2)
    assert_delivered(admin.lab)
    assert_no_secret_below(tmp_path, admin)


@pytest.mark.slow
def test_user_who_is_dropped_in_the_middle_and_made_again_is_delivered_to(tmp_path, guarded, login, start, wait_for):
    _, admin = guarded
    url = login(["readWrite"])
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "wait").touch()
    recorded = start(tmp_path, RECORDS, "-m", url)
    wait_for(lambda: admin.lab.metrics.find_one({"count": {"$gt": 50}}), "points in the database")
    admin.lab.command("dropUser", USER)
    wait_for(lambda: "MongoDB at" in recorded.err.read_text(), "the refusal to be noticed")
    admin.lab.command("createUser", USER, pwd=PLAIN, roles=["readWrite"])
    wait_for(lambda: "back, and all" in recorded.err.read_text(), "the user to be noticed")
    (tmp_path / "wait").unlink()
    recorded.finish()
    assert_delivered(admin.lab)
    assert_no_secret_below(tmp_path, admin)


@pytest.mark.slow
def test_user_who_may_write_but_make_no_index_and_remove_nothing_records(tmp_path, guarded, login, start):
    _, admin = guarded
    url = login(actions=["find", "insert", "update"])
    stderr = start(tmp_path, RECORDS, "-m", url).finish()
    lines_about_mongo(stderr, 0)
    assert_delivered(admin.lab)
    for collection in ("runs", "metrics", "fs.files", "fs.chunks"):
        assert admin.lab[collection].index_information().keys() == {"_id_"}
    assert_no_secret_below(tmp_path, admin)


# ---------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Files of a self-signed certificate for 127.0.0.1: alone, and with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=127.0.0.1"
    command = [*request.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return folder / "cert.pem", folder / "both.pem"


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory, certificate):
    options = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(certificate[1])]
    with Mongod(tmp_path_factory.mktemp("tls_server"), options=options) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("?serverSelectionTimeoutMS=300", "require TLS (tls=true in the URL)"),
        (
            "?tls=true&serverSelectionTimeoutMS=300",
            "TLS fails: the server's certificate is not trusted (self-signed certificate)",
        ),
    ],
)
def test_wrong_tls_is_one_line_and_the_right_certificate_records(
    tmp_path, tls_server, certificate, start, capsys, options, words
):
    stderr = start(tmp_path, RECORDS, "-m", f"{tls_server.url}/lab{options}", impatient=True).finish()
    first, _ = lines_about_mongo(stderr, 2)
    assert words in first
    assert runs_command(["sync", str(tmp_path / "runs"), "--url", f"{tls_server.url}/lab{options}"]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.splitlines()[1:] == ["error: 1 of 1 runs could not be delivered"]
    right = f"{tls_server.url}/lab?tls=true&tlsCAFile={certificate[0]}"
    assert runs_command(["sync", str(tmp_path / "runs"), "--url", right]) == 0
    with pymongo.MongoClient(right) as client:
        assert_delivered(client.lab)
        client.drop_database("lab")


@pytest.mark.slow
def test_right_certificate_records(tmp_path, tls_server, certificate, start):
    right = f"{tls_server.url}/lab?tls=true&tlsCAFile={certificate[0]}"
    stderr = start(tmp_path, RECORDS, "-m", right).finish()
    lines_about_mongo(stderr, 0)
    with pymongo.MongoClient(right) as client:
        assert_delivered(client.lab)
        client.drop_database("lab")


@pytest.mark.slow
def test_tls_url_of_a_server_without_tls_says_so(tmp_path, mongo_url, certificate, start):
    url = f"{mongo_url}/lab?tls=true&tlsCAFile={certificate[0]}&serverSelectionTimeoutMS=300"
    stderr = start(tmp_path, RECORDS, "-m", url, impatient=True).finish()
    first, _ = lines_about_mongo(stderr, 2)
    assert "TLS fails: the server seems to speak none" in first


# ---------------------------------------------------------------------- URLs


@pytest.mark.parametrize("url", ["mongodb://me-user:p@ss/w0rd?@host/lab", "mongodb://me-user:p@ss/w0rd@host/lab"])
def test_url_that_is_none_is_refused_without_its_password(tmp_path, start, url):
    recorded = start(tmp_path, RECORDS, "-m", url)
    assert recorded.process.wait(60) != 0
    written = recorded.err.read_text() + recorded.out.read_text()
    assert "the URL is wrong: user and password must be percent-encoded" in written
    assert [secret for secret in SECRETS if secret.decode() in written] == []


def test_url_that_is_none_in_the_code_never_stops_a_run(tmp_path, start):
    body = RECORDS.replace('FileObserver("runs")', 'MongoObserver("mongodb://me-user:p@ss/w0rd@host/lab")')
    stderr = start(tmp_path, body).finish()
    first, last = lines_about_mongo(stderr, 2)
    assert "the URL is wrong" in first
    assert re.search(r"3\d\d points", last)
    assert [secret for secret in SECRETS if secret.decode() in stderr] == []


@pytest.mark.slow
def test_url_of_a_file_that_is_not_there_is_refused(tmp_path, start, capsys, mongo_url):
    url = f"{mongo_url}/lab?tls=true&tlsCAFile=/nowhere/ca.pem"
    recorded = start(tmp_path, RECORDS, "-m", url)
    assert recorded.process.wait(60) != 0
    assert "error: -m: got" in recorded.err.read_text()
    assert "there is no file /nowhere/ca.pem" in recorded.err.read_text()
    away = "mongodb://127.0.0.1:9/lab?serverSelectionTimeoutMS=200"
    stderr = start(tmp_path / "other", RECORDS, "-m", away, impatient=True).finish()
    assert "not reachable" in stderr
    assert runs_command(["sync", str(tmp_path / "other" / "runs"), "--url", url]) == 1
    assert "there is no file /nowhere/ca.pem" in capsys.readouterr().err


def test_run_whose_points_the_user_may_not_remove_is_not_overwritten(tmp_path, guarded, login, start):
    _, admin = guarded
    url = login(actions=["find", "insert", "update"])
    admin.lab.runs.insert_one({"_id": 3, "status": "PENDING", "seml": {"name": "staged"}})
    body = """
ex.observers.append(MongoObserver(sys.argv.pop(), "lab", overwrite=3))
@ex.automain
def main(_run): _run.log_scalar("loss", 1.0, 0)
"""
    start(tmp_path, body, url).finish()
    staged = admin.lab.runs.find_one({"_id": 3})
    assert (staged["status"], staged["seml"]) == ("COMPLETED", {"name": "staged"})
    stderr = start(tmp_path, body, url).finish()
    assert "run 3 is not overwritten, because the user may not remove the points of its earlier run" in stderr
    assert admin.lab.runs.find_one({"_id": 3}) == staged
    assert admin.lab.runs.find_one({"_id": 4})["status"] == "COMPLETED"
    assert [points["run_id"] for points in admin.lab.metrics.find({"name": "loss"})] == [3, 4]
