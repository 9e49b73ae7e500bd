"""`board`: runs in the browser."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from pathlib import Path

from runs.commands.terminal.arguments import port, where_of

__all__ = ["add_arguments", "main"]

_TOKEN = "SACRISTAN_BOARD_TOKEN"
_EPILOG = f"""Only this machine can reach the board. Any other --host needs a token, which browsers must present;
--token without a value makes a random one, and ${_TOKEN} sets one without showing it to other users of the machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8765, help="port; 0 takes a free one (8765)")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    parser.add_argument("--read-only", action="store_true", help="reject tags, notes and deletion")
    parser.add_argument(
        "--token", nargs="?", const="", help="token that browsers must present; without a value, a random one"
    )
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="serve over TLS, with this PEM certificate")
    parser.add_argument("--key", type=Path, metavar="FILE", help="private key, unless the certificate file contains it")


def main(arguments: argparse.Namespace) -> int:
    """Serve the board until Ctrl-C or SIGTERM."""
    from runs.errors import needing_extra

    with needing_extra("board", "the board"):
        import plotly  # noqa: F401  # whose script is served

        from runs.board.serving import BoardServer

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    server = BoardServer(
        where=where_of(arguments),
        host=arguments.host,
        port=arguments.port,
        token=arguments.token if arguments.token is not None else os.environ.get(_TOKEN),
        is_read_only=arguments.read_only,
        certificate=arguments.certificate,
        key=arguments.key,
    )
    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve(
            opens_browser=not arguments.no_open,
            on_started=lambda: print(f"{server.url}  (Ctrl-C stops it)", flush=True),
        )
    return 0
