"""Threads that each keep a store open, as a store serves one thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sacristan.runs.errors import StoreAwayError, StoreError
from sacristan.runs.stores import Store

Answer = TypeVar("Answer")


class StorePool:
    """A few threads, each with its own store, which it opens when it is first asked; other questions wait."""

    def __init__(self, open_store: Callable[[], Store], num_threads: int = 4) -> None:
        # The store's folder or URL, without credentials; empty until a thread has opened it.
        self.where = ""
        # Name, finished part and size of the reading that delays answers; None without any.
        self.progress: tuple[str, int, int] | None = None
        self._open = open_store
        self.is_closed = False  # whether reading is to be cut short
        self._late: asyncio.Future[Any] | None = None
        self._workers = [ThreadPoolExecutor(1, f"store-{number}") for number in range(num_threads)]
        self._stores: dict[ThreadPoolExecutor, Store] = {}
        self._free: asyncio.PriorityQueue[tuple[int, ThreadPoolExecutor]] | None = None

    async def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """Ask a question in the thread of a store and return the answer, or raise the question's error.

        Other threads may ask their own stores at the same time.
        """
        if self._free is None:
            # The first free thread is asked, so that few stores are opened, and its index is seldom old.
            self._free = asyncio.PriorityQueue()
            for place in enumerate(self._workers):
                self._free.put_nowait(place)
        number, worker = await self._free.get()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                worker, contextvars.copy_context().run, self._answer, worker, question
            )
        finally:
            self._free.put_nowait((number, worker))

    async def ask_within(self, question: Callable[[Store], Answer], timeout_s: float) -> Answer:
        """Ask a question that may take some seconds; while a late answer is awaited, further ones are refused.

        StoreAwayError means that there was no answer in time.
        """
        if self._late is None:
            asked = asyncio.ensure_future(self.ask(question))
            if (await asyncio.wait({asked}, timeout=timeout_s))[0]:
                return asked.result()
            self._late = asked
            asked.add_done_callback(self._forget)
        if self.progress:
            raise StoreAwayError("{}: {:,} of {:,}; ask again later".format(*self.progress))
        raise StoreAwayError(f"the store has not answered within {timeout_s:g} s; ask again later")

    def _forget(self, late: asyncio.Future[Any]) -> None:
        self._late = None
        if not late.cancelled():
            late.exception()  # the next question reports it

    def _answer(self, worker: ThreadPoolExecutor, question: Callable[[Store], Answer]) -> Answer:
        if worker not in self._stores:
            self._stores[worker] = self._open()
            self._stores[worker].on_progress = self._note
            self.where = self._stores[worker].where
        try:
            return question(self._stores[worker])
        finally:
            self.progress = None

    def _note(self, what: str, done: int, total: int) -> None:
        if self.is_closed:
            raise StoreError("the pool has been closed")
        self.progress = (what, done, total) if done < total else None

    def close(self) -> None:
        """Close the stores after the running questions; long reading is cut short."""
        self.is_closed = True
        for worker in self._workers:
            if worker in self._stores:
                worker.submit(self._stores.pop(worker).close)
            worker.shutdown()
