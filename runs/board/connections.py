"""HTTP connections of which those that wait make room for those that ask."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MAX_CONNECTIONS", "YieldingProtocol"]

# Connections that are open at once, as far as they do not all wait for answers.
MAX_CONNECTIONS = 200


class YieldingProtocol(H11Protocol):
    """HTTP/1.1, where a new connection closes another one if there are too many.

    That is the one that has waited longest: idle, or with a request that is not complete; if all have been asked for
    something, one whose answer is not read. So whoever opens connections and says nothing keeps nobody out.
    """

    _waiting_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take on a connection; see `asyncio.Protocol`."""
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        others = [one for one in self.connections if one is not self and isinstance(one, YieldingProtocol)]
        if len(self.connections) < MAX_CONNECTIONS:
            return
        if idle := [one for one in others if not one._is_asked or one.flow.write_paused]:
            longest = min(idle, key=lambda one: (one._is_asked, one._waiting_since))
            self.connections.discard(longest)
            longest.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._waiting_since = self.loop.time()
        super().on_response_complete()

    @property
    def _is_asked(self) -> bool:
        """True if a whole request has arrived and is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
