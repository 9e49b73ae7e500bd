"""Visitors of a board, and what they may do."""

from __future__ import annotations

import dataclasses
import enum

from sacristan.runs.stores.authors import Author
from sacristan.runs.stores.settings import show

__all__ = ["Role", "Visitor", "user_of_board"]


class Role(enum.IntEnum):
    """Permissions; each includes the ones before it."""

    READ = 0
    # Tags, notes, names and saved views.
    NOTE = 1
    # Everything else, such as deletion.
    WRITE = 2

    @property
    def word(self) -> str:
        """The role as users write it."""
        return self.name.lower()


@dataclasses.dataclass(frozen=True)
class Visitor:
    """The sender of a request.

    Attributes:
        name: The user of the board, the name of a token, or the user whom a proxy names; empty before the login.
        via: How the board knows the name: `board`, `token` or `proxy`.
        account: The user who records the visitor's runs; empty if that is the name.
    """

    name: str = ""
    role: Role = Role.READ
    via: str = ""
    account: str = ""

    @property
    def mine(self) -> str:
        """The condition that matches the visitor's own runs; empty before the login."""
        user = self.account or self.name
        return f"user={show(user)}" if user else ""

    @property
    def author(self) -> Author:
        """The visitor, as runs record it."""
        return Author(self.name, self.via)

    @property
    def may_note(self) -> bool:
        """True if the visitor may change tags, notes and views."""
        return self.role >= Role.NOTE

    @property
    def may_write(self) -> bool:
        """True if the visitor may delete runs."""
        return self.role >= Role.WRITE


def user_of_board() -> str:
    """Return the user who started the board."""
    return Author.of_process().name
