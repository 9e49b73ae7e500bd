"""Words that name people, machines and places in the records of runs; see `sacristan.runs.transfer.anonymous`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.observers.record.identity import user_name
from sacristan.runs.errors import StoreError
from sacristan.runs.query.flattening import dotted, entry_at, list_of, mapping_of
from sacristan.runs.stores.run import Run

__all__ = ["IdentifyingWords"]

# Names of accounts and machines that are words of their own; they name nobody.
_COMMON = frozenset(
    ("admin", "administrator", "adm", "base", "code", "data", "debian", "default", "dev", "docker", "exp", "experiment",
     "git", "gpu", "guest", "home", "host", "jovyan", "lab", "local", "localhost", "main", "master", "model", "mongo",
     "mongodb", "nobody", "node", "public", "root", "run", "runner", "runs", "server", "slurm", "student", "sudo",
     "test", "train", "ubuntu", "user", "users", "vagrant", "vm", "work", "worker", "www")
)  # fmt: skip
_PEOPLE = frozenset(("user", "username", "author", "email", "by", "who"))
_MACHINES = frozenset(("hostname", "host", "fqdn", "node"))
_SYSTEM = re.compile(r"/(usr|bin|lib|lib64|etc|dev|proc|sys|sbin|run|boot)(/|$)")
_PATH = re.compile(r"(?:^|(?<=[=:\s'\"]))(/(?:[^\s:'\",;=/]+/)*[^\s:'\",;=/]+)")
_HOME = re.compile(r"(?:/home/|/Users/|\\Users\\)([^\s/\\'\":]+)")
_EMAIL = re.compile(
    r"[\w.+-]+@(?:[\w-]+\.)+(?:com|org|net|edu|gov|io|ai|dev|eu|de|fr|uk|ch|at|it|es|nl|cn|jp|kr|in|ca|us)\b"
)
_PRIVATE = re.compile(r"(?<![\d.])(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\d.])")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ADDRESS = re.compile(
    r"^(?:\w[\w+.-]*://)?+(?:(?P<account>[^@:/]*)(?::[^@/]*)?@)?(?P<machines>\w[\w.-]*(?::\d+)?(?:,[\w.:-]+)?)"
    r"(?:[:/](?P<owner>[^/]+)/)?"
)
_PUBLIC = re.compile(r"(^|\.)(github|gitlab|bitbucket)\.(com|org)$|^127\.")


class IdentifyingWords:
    """Collects the words that name people, machines and places in runs, with a replacement for each.

    Attributes:
        common: Names of accounts and machines that are common words, which are not hidden everywhere.
        own: Names of people and machines that are also names of settings, metrics or sources.
    """

    def __init__(self, keep: Sequence[str] = ()) -> None:
        self._keep = {word.lower() for word in keep}
        self.replacements: dict[str, str] = {}
        self.own = set[str]()
        self.common = set[str]()
        self._counts: dict[str, int] = {}
        self._known: set[str] = set()
        self._own_names: set[str] = set()

    def note_own(self, run: Run) -> None:
        """Note the names of a run's settings, metrics and sources, whose meaning only its author knows."""
        names = [*dotted(dict(run.config)), *run.metrics, *(content.name for content in run.stored("sources"))]
        self._own_names |= {part.lower() for name in names for part in re.split(r"[^A-Za-z0-9]+", name)}

    def _add_this_machine(self) -> None:
        self.add("person", user_name() or "")
        self._add_full_name(_account_name())
        for name in dict.fromkeys((socket.gethostname(), socket.gethostname().partition(".")[0])):
            self.add("machine", name)
        self.add("path", str(Path.home()))

    def _add_full_name(self, name: str) -> None:
        self.add("person", name)
        for part in name.split():
            self.add("person", part, is_part=True)

    def add(self, kind: str, word: str, *, is_part: bool = False) -> None:
        """Add a word unless it is known, or too common to hide everywhere.

        `kind` is `person`, `machine`, `path`, `address`, `commit` or `hidden`. With `is_part`, the word is a first or
        last name, which is common if it is also the name of a setting, as `max` is.
        """
        word = word.strip().rstrip("/")
        if not word or word.lower() in self._known:
            return
        is_common = len(word) < 3 or word.isdigit() or word.lower() in _COMMON | self._keep
        if kind in ("person", "machine") and is_common:
            self.common.add(word)
            return
        if kind in ("person", "machine") and word.lower() in self._own_names:
            (self.common if is_part else self.own).add(word)
            return
        if len(word) < 2 or (kind == "path" and _is_public(word)):
            return
        self._known.add(word.lower())
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        name = f"{number:040x}" if kind == "commit" else f"{'/' * (kind == 'path')}{kind}-{number}"
        self.replacements[word] = name
        for length in range(7, 13) if kind == "commit" else ():
            self.replacements.setdefault(word[:length], name[-length:])

    def take(self, run: Run) -> None:
        self._add_this_machine()
        record = {**run.document, "info": dict(run.info), "lease": run.lease or {}, "notes": run.notes()}
        self._take_fields(record)
        texts = [json.dumps([record, dict(run.config), run.provenance], default=str, ensure_ascii=False)]
        self._take_repositories(run)
        self._take_places(run)
        for content in run.stored("sources"):
            with contextlib.suppress(StoreError):
                texts.append(content.read().decode(errors="replace"))
        texts.append(run.read_output()[0].decode(errors="replace"))
        for text in texts:
            for kind, pattern in (("person", _HOME), ("person", _EMAIL), ("machine", _PRIVATE)):
                for match in pattern.finditer(text):
                    self.add(kind, match[1] if match.re.groups else match[0])

    def _take_fields(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            for item in value:
                self._take_fields(item)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if isinstance(item, str) and key in _PEOPLE | _MACHINES:
                    self.add("person" if key in _PEOPLE else "machine", item)
                self._take_fields(item)

    def _take_repositories(self, run: Run) -> None:
        git = mapping_of(run.provenance.get("git"))
        recorded = list_of(entry_at(run.document, "experiment.repositories"))
        libraries = mapping_of(run.provenance.get("libraries")).values()
        for repository in map(mapping_of, (git, *recorded, *libraries)):
            if _COMMIT.fullmatch(str(repository.get("commit"))):
                self.add("commit", repository["commit"])
            self._take_address(str(repository.get("url") or ""))
        for name in _git_people(str(git.get("root") or ""), str(git.get("commit") or "")):
            self.add("person", name) if "@" in name else self._add_full_name(name)

    def _take_places(self, run: Run) -> None:
        for option in mapping_of(entry_at(run.document, "meta.options")).values():
            if isinstance(option, str) and re.search(r"://|^[\w.-]+:\d+", option):
                self._take_address(option)
        if "://" in run.store.where:
            self._take_address(run.store.where)
        else:
            self.add("path", str(Path(run.store.where).absolute()))
        for value in _texts([run.document, dict(run.config), run.provenance]):
            for match in _PATH.finditer(value):
                self.add("path", match[1])
                self.add("path", str(Path(match[1]).parent))

    def _take_address(self, address: str) -> None:
        """Add an address, its account, its machines unless they are public, and the owner of a repository."""
        self.add("address", address)
        match = _ADDRESS.search(address) if ":" in address else None  # else it is a path
        if match is None:
            return
        for machine in re.split(r"(?::\d+)?,|:\d+$", match["machines"]):
            if not _PUBLIC.search(machine):
                self.add("machine", machine)
        self.add("person", match["account"] or "")
        self.add("person", match["owner"] or "")


def _is_public(path: str) -> bool:
    """Tell whether a path is short or belongs to the system, so that it says nothing about its user."""
    return (path.count("/") < 2 and path != "/root") or bool(_SYSTEM.match(path))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _account_name() -> str:
    """Return the full name of this account."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0]
    except (ImportError, KeyError):
        return ""


def _git_people(root: str, commit: str) -> Iterator[str]:
    """Yield names and addresses of a commit's author and of this repository's user, if the repository is here."""
    if not root or not Path(root).is_dir():
        return
    queries = [["config", "user.name"], ["config", "user.email"]]
    if _COMMIT.fullmatch(commit):
        queries.append(["log", "-1", "--format=%an%n%ae%n%cn%n%ce", commit])
    for query in queries:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(["git", "-C", root, *query], capture_output=True, text=True, timeout=10, check=False)
            yield from done.stdout.splitlines()
