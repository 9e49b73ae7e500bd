"""`sacristan board`: addresses, tokens, TLS, and what is missing."""

import contextlib
import http.client
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys

import pytest

from sacristan import runs
from sacristan.__main__ import main
from sacristan.configs.packages import install_command
from sacristan.runs import ServerError
from sacristan.runs.board.serving import BoardServer
from tests.processes import PIPE, Process


@pytest.mark.sampled(1)
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_board_is_served_until_it_is_told_to_end(recorded, signals):
    command = [
        sys.executable,
        "-m",
        "sacristan",
        "board",
        "--store",
        str(recorded),
        "--port",
        "0",
        "--no-open",
        "--token",
    ]
    process = Process(command, stdout=PIPE, stderr=PIPE, text=True)
    try:
        line = process.stdout.readline()
        port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(\S{32})  \(Ctrl-C stops it\)\n", line).groups()
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        for path, status in (("/runs", 401), (f"/runs?token={token}", 200)):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        cookie = answer.headers["set-cookie"].partition(";")[0]
        with socket.create_connection(("127.0.0.1", int(port)), 60) as asking:
            # A request whose body does not come; it is cut short after two seconds, or by the second signal.
            head = f"Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nCookie: {cookie}\r\n"
            head += "Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"
            asking.sendall(f"POST /list/note HTTP/1.1\r\n{head}".encode())
            assert asking.recv(12) == b"HTTP/1.1 100"
            for number in signals:
                process.send_signal(number)
                # The board has heard it, and closes what is idle; of two signals at once, one would be lost.
                assert connection.sock.recv(1) == b""
            assert process.wait(60) == 0
        connection.close()
        assert process.stderr.read() == ""
    finally:
        process.close()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--store", "nowhere"], "there is no folder nowhere"),
        (["--host", "0.0.0.0"], "on 0.0.0.0, others could read and change the runs; add --token"),
        (["--token", "short"], "the token has 5 characters, expected at least 16"),
        (["--certificate", "none.pem"], "there is no file none.pem"),
        (["--host", "192.0.2.7", "--token"], "192.0.2.7:8765 cannot be listened on"),
    ],
)
def test_board_that_cannot_be_served_says_why(recorded, tmp_path, monkeypatch, capsys, arguments, problem):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACRISTAN_BOARD_TOKEN", raising=False)
    assert main(["--store", str(recorded), "board", "--no-open", *arguments]) == 1
    assert problem in capsys.readouterr().err


def test_key_and_certificate_belong_together(recorded, tmp_path):
    (tmp_path / "key.pem").write_text("")
    with pytest.raises(ServerError, match=r"got the key .*key.pem without a certificate"):
        BoardServer(str(recorded), port=0, key=tmp_path / "key.pem")
    server = BoardServer(str(recorded), port=0, certificate=tmp_path / "key.pem")
    assert server.url.startswith("https://127.0.0.1:")
    with pytest.raises(ServerError, match=r"key.pem cannot be used as a TLS certificate"):
        server.serve()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
def test_board_is_served_over_tls(recorded, tmp_path):
    files = {"certificate": tmp_path / "certificate.pem", "key": tmp_path / "key.pem"}
    options = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    out = ["-keyout", str(files["key"]), "-out", str(files["certificate"])]
    subprocess.run(["openssl", "req", *options, *names, *out], check=True, capture_output=True)
    command = [
        sys.executable,
        "-m",
        "sacristan",
        "--store",
        str(recorded),
        "board",
        "--port",
        "0",
        "--no-open",
        "--token",
    ]
    command += ["--public-name", "runs.example.org", "--certificate", files["certificate"], "--key", files["key"]]
    with Process(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        port, token = re.match(r"https://127\.0\.0\.1:(\d+)/\?token=(\S{32}) ", process.stdout.readline()).groups()
        trusting = ssl.create_default_context(cafile=files["certificate"])
        connection = http.client.HTTPSConnection("127.0.0.1", int(port), timeout=60, context=trusting)
        for host, status in (("runs.example.org", 200), ("evil.example.org", 421)):
            connection.request("GET", f"/?token={token}", headers={"host": host})
            answer = connection.getresponse()
            answer.read()
            assert (answer.status, "Secure" in answer.headers.get("set-cookie", "")) == (status, status == 200)
        connection.close()
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    "sent", ["", "GET /runs HTTP/1.1\r\nHost:", "POST /list/note HTTP/1.1\r\nHost: {0}\r\n{1}Content-Length: 9\r\n\r\n"]
)
def test_connections_that_ask_for_nothing_leave_the_board_to_others(serve, recorded, sent):
    address = serve(recorded).removeprefix("http://")
    host, _, port = address.partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(210):
            idle = stack.enter_context(socket.create_connection((host, int(port)), 60))
            idle.sendall(sent.format(address, f"Origin: http://{address}\r\n").encode())
        for _ in range(3):
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("GET", "/runs")
            assert connection.getresponse().status == 200
            connection.close()


def test_taken_port_is_told(recorded):
    server = BoardServer(str(recorded), port=0)
    with pytest.raises(ServerError, match=rf"127.0.0.1:{server.port} cannot be listened on .*--port 0"):
        BoardServer(str(recorded), port=server.port)
    server.close()


def test_missing_package_names_the_extra(monkeypatch, recorded, capsys):
    monkeypatch.setattr(runs, "board", runs.board)  # as it is put in place anew by what is imported here
    for name in [name for name in sys.modules if name.startswith("sacristan.runs.board")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["--store", str(recorded), "board", "--no-open"]) == 1
    assert capsys.readouterr().err == (
        "error: the board needs the package 'uvicorn', which is not installed; "
        f"install it with: {install_command('board')}\n"
    )
