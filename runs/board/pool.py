"""Threads that each hold a store open, because a store serves one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from runs.errors import StoreError
from runs.stores.store import Store

__all__ = ["StorePool"]

Answer = TypeVar("Answer")


class StorePool:
    """A few threads, each with its own store, which it opens when it is first asked.

    Args:
        open_store: Opens the store.
        num_threads: Number of questions that are answered at once; others wait.

    Attributes:
        progress: Name, finished part and size of the reading that delays answers; None without any.
        is_closed: Whether reading is to be cut short.
    """

    def __init__(self, open_store: Callable[[], Store], num_threads: int = 4) -> None:
        self.progress: tuple[str, int, int] | None = None
        self._open = open_store
        self.is_closed = False
        self._workers = [ThreadPoolExecutor(1, f"store-{number}") for number in range(num_threads)]
        self._stores: dict[ThreadPoolExecutor, Store] = {}
        self._free: asyncio.LifoQueue[ThreadPoolExecutor] | None = None

    async def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """Ask a question in the thread of a store, and return the answer.

        Args:
            question: A function of the store. It may run while other threads ask their own stores.

        Raises:
            RunsError: If the store cannot be opened. Errors of the question are raised too.
        """
        if self._free is None:
            # The thread that was used last is asked first, so that few stores are opened.
            self._free = asyncio.LifoQueue()
            for worker in reversed(self._workers):
                self._free.put_nowait(worker)
        worker = await self._free.get()
        try:
            return await asyncio.get_running_loop().run_in_executor(worker, self._answer, worker, question)
        finally:
            self._free.put_nowait(worker)

    def _answer(self, worker: ThreadPoolExecutor, question: Callable[[Store], Answer]) -> Answer:
        if worker not in self._stores:
            self._stores[worker] = self._open()
            self._stores[worker].on_progress = self._note
        try:
            return question(self._stores[worker])
        finally:
            self.progress = None

    def _note(self, what: str, done: int, total: int) -> None:
        if self.is_closed:
            raise StoreError("the board has been closed")
        self.progress = (what, done, total) if done < total else None

    def close(self) -> None:
        """Close the stores after the running questions; long reading is cut short."""
        self.is_closed = True
        for worker in self._workers:
            if worker in self._stores:
                worker.submit(self._stores.pop(worker).close)
            worker.shutdown()
