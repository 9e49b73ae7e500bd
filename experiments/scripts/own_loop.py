"""`LoopState`: a training loop of your own, saved after whole steps, and resumed from there to the same bits.

A state has all parts, every random stream, the place in the epoch and in the record: what `sacristan.experiments`
saves for the lab's own loop, see `sacristan.ingredients.checkpoints`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sacristan.experiments.running.main_file import is_notebook
from sacristan.experiments.running.signals import Terminated, is_loader_worker
from sacristan.experiments.scripts.history import History
from sacristan.experiments.scripts.loop_parts import (
    Follower,
    LoopLoader,
    OfEachRank,
    joined_ranks,
    start_from,
    state_to_start_from,
)
from sacristan.ingredients.checkpoints import Checkpointer
from sacristan.ingredients.checkpoints.training_state import Place
from sacristan.ingredients.config.seed import global_states, set_global_states
from sacristan.ingredients.errors import CheckpointError

if TYPE_CHECKING:
    from sacristan.experiments.scripts.session import Session

_log = logging.getLogger(__name__)

T = TypeVar("T")

# After how many logs between a forward pass and its step a loop that cannot be stopped at a whole step is ended.
_MOST_LOGS = 3


class _Kept:
    """What a state has beside the parts: where its streams belong to, steps of the log, values of the script."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.values: dict[str, Any] = {}
        self.place = ""

    def state_dict(self) -> dict[str, Any]:
        return {"log_step": self.history.step, "values": dict(self.values), "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.step, self.place = state["log_step"], state["place"]
        self.values.update(state["values"])


class LoopState:
    """The state of a loop of your own: where it is, when it is saved, and how it goes on.

        state = run.checkpoint(model=model, optimizer=optimizer, every=500)
        for step in state.steps(10_000):
            ...
            run.log({"loss": loss.item()}, step)

        state = run.checkpoint(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
        for epoch in state.epochs(10):
            for inputs, targets in state.loader:
                ...

    In a run that continues an earlier one, `run.checkpoint` loads the newest good state into the parts, rewinds the
    record to it, and the loops continue after the step that it was saved at. After SIGTERM, Ctrl-C, SIGHUP or SIGUSR1,
    the step is finished, the state saved, the run INTERRUPTED, and the process ends with exit code 75; a second signal
    ends it at once. The step ends where `steps`, `state.loader` or `epochs` is asked for the next item.

    A loop that uses none of them counts the steps of the optimizer, as `state.step`, and is stopped at a `log` that
    follows such a step: log last in its body.

    Of several processes, such as those of torchrun, all call `run.checkpoint`, and ask for steps: rank 0 saves one
    state for all of them, with the random streams and the loader's place of each, after epochs and by `every`.

    Args:
        loader: The loader of the training data: a DataLoader of torch, of any data set, sampler and number of workers;
            torchdata's StatefulDataLoader; a loader that accelerate has prepared; or another iterable that yields the
            same items each time the random streams are the same. It is `state.loader` from now on. Workers that
            persist, and draw random numbers themselves, cannot be resumed to the same bits, and are warned of.
        every: Steps between two states. By default, there is one after each epoch, and one every 10 minutes.
        every_s: Seconds between two states; None for no limit.
        keep: How many states to keep.
        **parts: Objects with `state_dict` and `load_state_dict`, by name: `model`, `optimizer`, `scheduler`, `scaler`.

    Attributes:
        epoch: Epochs that are done.
        step: Steps that are done.
        batch: Batches that are done of the epoch after them.
        values: Numbers, texts, tensors, lists and dicts of yours, by name, which each state has as well.

    Raises:
        CheckpointError: If a part has no state, a state does not fit, or the process is one of several that
            `torch.distributed` has not connected.
    """

    def __init__(
        self,
        session: Session | None,
        history: History,
        end: Callable[[BaseException], None],
        *,
        loader: Any = None,
        every: int | None = None,
        every_s: float | None = 600.0,
        keep: int = 2,
        **parts: Any,
    ) -> None:
        self._run = None if session is None else session.run
        self._session, self._end = session, end
        self.every, self.every_s = every, every_s
        self._ranks = joined_ranks()
        # What ends the loop after a signal: the run, or in a process without one what stands for it.
        self._record: Any = Follower() if self._run is None and self._ranks.size > 1 else self._run
        self._place = Place()
        self._kept = _Kept(history)
        self.values = self._kept.values
        self.parts = {name: _checked(name, part) for name, part in parts.items() if part is not None}
        self._loader: LoopLoader | None = None
        if loader is not None:
            self._loader = LoopLoader(loader, self)
            self.parts["loader"] = OfEachRank(self._loader, self._ranks)
        self.parts["loop"] = OfEachRank(self._kept, self._ranks)
        self._keeper: Checkpointer | None = None
        self._saved: tuple[int, int, int] | None = None
        self._saved_at = time.monotonic()
        self._streams: Any = None
        self._depth = 0
        self._watching = _Watch(self.parts, self._count)
        self._undo = contextlib.ExitStack()
        folder = self._ranks.from_first(self._folder)
        if folder is not None:
            self._begin(folder, keep)

    def _folder(self) -> Path | None:
        """Return the folder for the states; None if there is nothing to keep them in."""
        if self._run is None:
            return None
        if self._run.folder is None:
            _log.warning("checkpoint: this run has no folder to keep states in, so it cannot be resumed")
            return None
        number = self._run.count_training()
        return self._run.folder.absolute() / ("checkpoints" if number == 1 else f"checkpoints-{number}")

    def _begin(self, folder: Path, keep: int) -> None:
        run = self._run
        is_resumed = self._ranks.from_first(lambda: run is not None and run.is_resumed)
        config = {} if run is None else run.config
        self._keeper = keeper = Checkpointer(
            folder, config, best=False, keep=keep, resume=is_resumed, record=self._record
        )
        self._place = keeper.begin(self.parts, ranks=self._ranks)
        if not self._place.step:
            path = self._ranks.from_first(lambda: state_to_start_from(keeper))
            if path is not None:
                self._place = start_from(path, self.parts, self._ranks)
        if self._place.step or self._place.epoch:
            self._saved = (self._place.epoch, self._place.batch, self._place.step)
            self._streams = global_states()
            for part in self.parts.values():
                if hasattr(part, "param_groups"):
                    part._opt_called = True  # torch's own mark, by which it warns of schedulers that come too early
        elif is_resumed:
            self._kept.history.step = 0
        self._hold_signals()

    # ------------------------------------------------------------------ where the loop is

    @property
    def epoch(self) -> int:
        return self._place.epoch

    @property
    def batch(self) -> int:
        return self._place.batch

    @property
    def step(self) -> int:
        return self._place.step

    @property
    def loader(self) -> LoopLoader:
        """The loader, which resumes in the middle of an epoch.

        Raises:
            CheckpointError: If the loop was given none.
        """
        if self._loader is None:
            raise CheckpointError("checkpoint: this loop has no loader; give it one: run.checkpoint(loader=loader)")
        return self._loader

    @property
    def is_resumed(self) -> bool:
        """Whether the loop continues from a state."""
        return self._streams is not None or self._saved is not None

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the steps that are left, from 0 to `total` - 1; each is done when the next is asked for.

        Args:
            total: Number of steps of the whole training.
        """
        if self._ranks.size > 1 and self.every is None:
            _log.warning("checkpoint: several processes save states by number alone; give every=STEPS")
        with self._looping("steps"):
            while self._place.step < total:
                yield self._place.step
                self._place.step += 1
                self._place.batch = self._place.step
                self.end_of_step("steps", final=self._place.step == total)

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, up to `total` - 1; each is done when the next is asked for.

        Args:
            total: Number of epochs of the whole training.
        """
        with self._looping("epochs"):
            while self._place.epoch < total:
                epoch = self._place.epoch
                yield epoch
                if self._place.epoch == epoch:  # without the loader, or left before its end
                    self._place.epoch, self._place.batch = epoch + 1, 0
                self.end_of_step("epochs", final=self._place.epoch == total, is_due=True)

    @contextlib.contextmanager
    def _looping(self, place: str) -> Iterator[None]:
        """Count the loops that ask for steps; put the random streams back to where the state was saved."""
        self._depth += 1
        self._watching.stop()
        try:
            self.restore_streams(place)
            yield
        finally:
            self._depth -= 1

    def restore_streams(self, place: str) -> None:
        """Restore the random streams of the state that was loaded, where the loop is as when it was saved."""
        if self._streams is not None and self._kept.place == place:
            set_global_states(self._streams)
            self._streams = None

    # ------------------------------------------------------------------ after a step

    def begin_epoch(self) -> None:
        """Note that the loader begins an epoch; the one before it, if any, is done."""
        self._depth += 1
        self._watching.stop()
        if self.loader.is_within_epoch:
            return
        if self._place.batch:  # the one before was left before its end
            self._place.epoch, self._place.batch = self._place.epoch + 1, 0
        if self._place.epoch and self._depth == 1:
            self.end_of_step("loader", is_due=True)

    def end_batch(self) -> None:
        """Note that the step of a batch is done."""
        self._place.batch += 1
        self._place.step += 1
        self.end_of_step("loader")

    def end_epoch(self, *, is_whole: bool) -> None:
        """Note that the loader has no more batches (`is_whole`), or that nobody asks for more."""
        self._depth -= 1
        if is_whole:
            if self._is_stopping:
                self._save("loader")
            self._place.epoch, self._place.batch = self._place.epoch + 1, 0

    def until_stopped(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items; stop where getting one fails after a signal has asked for the end; see `Checkpointer`."""
        return iter(items) if self._keeper is None else self._keeper.until_stopped(items)

    @property
    def _is_stopping(self) -> bool:
        return self._keeper is not None and self._keeper.is_stopping

    def end_of_step(self, place: str, *, final: bool = False, is_due: bool = False) -> None:
        """Save a state after a whole step if it is due; end the run if a signal has asked for that."""
        if self._keeper is None:
            return
        is_stopping = self._keeper.is_due(self._place.step)
        by_number = self.every is not None and self._place.step % self.every == 0
        # Several processes save together, and have clocks of their own.
        every_s = self.every_s if self._ranks.size == 1 else None
        by_time = every_s is not None and time.monotonic() - self._saved_at >= every_s
        is_due = is_due or by_time or by_number
        if final or is_due or is_stopping:
            self._save(place, final=final, is_due=is_due)

    def save(self) -> None:
        """Save the state now, which must be that after a whole step; end the run if a signal has asked for that.

        Raises:
            CheckpointError: If it cannot be written; the states before it stay.
        """
        self._save("save", is_due=True)

    def _save(self, place: str, *, final: bool = False, is_due: bool = False) -> None:
        at = (self._place.epoch, self._place.batch, self._place.step)
        if self._keeper is None or (self._saved == at and not self._is_stopping and not final):
            return
        self._saved, self._saved_at, self._kept.place = at, time.monotonic(), place
        try:
            self._keeper.save(self._place, self.parts, final=final, due=is_due)
        except Terminated as end:
            self._stop(end)

    def _stop(self, end: Terminated) -> None:
        """End the run as INTERRUPTED, and the process with the exit code that asks for a restart."""
        self._end(end)
        if is_notebook():
            raise end
        raise SystemExit(end.code) from end

    # ------------------------------------------------------------------ loops that never ask

    def _count(self) -> None:
        if not self._depth:
            self._place.step += 1
            self._place.batch = self._place.step

    def stop_at_log(self) -> None:
        """Stop a loop that asks for no steps, at a log that follows a step of the optimizer."""
        if self._depth or self._record is None or self._record.stopping is None:
            return
        if self._ranks.size > 1:
            _log.error(
                "checkpoint: this loop asks for no steps, so its processes cannot save a state together; write: "
                "for step in state.steps(total)"
            )
            self._stop(Terminated(self._record.stopping))
        if not self._watching.is_active:
            self._watching.start()
            return
        if self._watching.is_at_whole_step():
            self._watching.stop()  # a scheduler whose method is replaced has no state that can be written
            self._save("log")
        if self._watching.num_logs >= _MOST_LOGS:
            _log.error(
                "checkpoint: this loop logs before a step of its optimizer or scheduler is done, so no state is saved; "
                "log last in its body, or write: for step in state.steps(total)"
            )
            self._stop(Terminated(self._record.stopping))

    # ------------------------------------------------------------------ signals

    def _hold_signals(self) -> None:
        """Hold back the first signal that would end the process, until a step is done."""
        if self._session is None:
            self._undo.callback(self._record.hold_signals())
            return
        self._session.on_signal = self._hold_back
        self._undo.callback(setattr, self._session, "on_signal", None)
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if before is signal.default_int_handler:
                signal.signal(signal.SIGINT, lambda number, frame: self._hold_back(number) or before(number, frame))
                self._undo.callback(signal.signal, signal.SIGINT, before)

    def _hold_back(self, number: int) -> bool:
        """Hold a signal back; False if another one was held back before."""
        run, session = self._run, self._session
        if run is None or session is None or session.has_ended:
            return False
        if not session.is_owner:
            return is_loader_worker()
        if run.stopping is not None:
            return False
        run.hold_signal_back(number)
        text = "saving a state after this step; once more ends the run at once"
        with contextlib.suppress(OSError):
            os.write(2, f"\n{signal.Signals(number).name}: {text}\n".encode())
        return True

    def close(self) -> None:
        """Wait until all states are written, and leave signals to others again."""
        self._watching.stop()
        self._undo.close()
        if self._keeper is not None:
            self._keeper.wait()


class _Watch:
    """Tells whether a loop that asks for no steps is at a whole one, by what its parts do between two logs."""

    def __init__(self, parts: dict[str, Any], count: Callable[[], None]) -> None:
        self.is_active = False
        self.num_logs = 0
        self._parts = parts
        self._count = count
        self._events: list[str] = []
        self._hooks = [
            part.register_step_post_hook(self._stepped)
            for part in parts.values()
            if hasattr(part, "register_step_post_hook")
        ][:1]
        self._replaced: list[Any] = []

    def _stepped(self, *args: Any) -> None:
        self._events.append("step")
        self._count()
        if not self.is_active:
            self._events.clear()

    def start(self) -> None:
        """Note forward passes and steps from now on."""
        self.is_active, self._events = True, []
        for part in self._parts.values():
            if hasattr(part, "register_forward_pre_hook"):
                self._hooks.append(part.register_forward_pre_hook(self._passed))
            elif hasattr(part, "last_epoch") and hasattr(part, "step"):
                self._replace_step(part)

    def _passed(self, module: Any, inputs: Any) -> None:
        if module.training:
            self._events.append("forward")

    def _replace_step(self, scheduler: Any) -> None:
        step = scheduler.step

        def stepped(*args: Any, **kwargs: Any) -> Any:
            self._events.append("scheduler")
            return step(*args, **kwargs)

        scheduler.step = stepped
        self._replaced.append(scheduler)

    def is_at_whole_step(self) -> bool:
        """Tell whether all that a step does was done since the last log: it began with a pass and ended with a step."""
        self.num_logs += 1
        events, self._events = self._events, []
        return bool(events) and events[0] == "forward" and events[-1] != "forward"

    def stop(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()
        for scheduler in self._replaced:
            del scheduler.step
        self._hooks, self._replaced, self.is_active = [], [], False


def _checked(name: str, part: Any) -> Any:
    for method in ("state_dict", "load_state_dict"):
        if not hasattr(part, method):
            raise CheckpointError(
                f"checkpoint: {name} is a {type(part).__name__}, which has no {method}; give objects that have one, "
                "and keep plain values in state.values"
            )
    if name == "loop":
        raise CheckpointError("checkpoint: the name loop is the lab's own; give the part another one")
    return part
