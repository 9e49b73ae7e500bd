"""Threads that each hold a store open, as a store serves one thread."""

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
    """A few threads, each with a store of its own, which it opens when it is first asked.

    Args:
        open_store: Opens the store.
        num_threads: How many questions are answered at once; others wait.

    Attributes:
        progress: What is read before questions are answered, how much of it was, and of how much; None if nothing.
        is_closed: Whether what is being read is to be left.
    """

    def __init__(self, open_store: Callable[[], Store], num_threads: int = 4) -> None:
        self.progress: tuple[str, int, int] | None = None
        self._open = open_store
        self.is_closed = False
        self._workers = [ThreadPoolExecutor(1, f"store-{number}") for number in range(num_threads)]
        self._stores: dict[ThreadPoolExecutor, Store] = {}
        self._free: asyncio.LifoQueue[ThreadPoolExecutor] | None = None

    async def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """Return the answer to a question, which is asked in the thread of a store.

        Raises:
            RunsError: If the store cannot be opened; and whatever the question raises.
        """
        if self._free is None:
            # The one that was used last is first, so that no more stores are opened than are needed.
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
        """Close the stores when the questions that are being answered are; what was not read yet is left."""
        self.is_closed = True
        for worker in self._workers:
            if worker in self._stores:
                worker.submit(self._stores.pop(worker).close)
            worker.shutdown()
