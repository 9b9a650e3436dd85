"""Keeps a number of replicas at work: hands out what waits, notices who is gone or hangs, and replaces them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from saki.rollout.pool.errors import ReplicaLostError, TooManyFailuresError
from saki.rollout.pool.settings import PoolSettings
from saki.rollout.sync import ChecksumMismatchError

logger = logging.getLogger(__name__)

Script = Generator[tuple[str, tuple[Any, ...]], Any, None]
"""Calls to one replica in turn: yields (name, arguments), and is sent each answer."""

_POLL_SECONDS = 1.0


class Handle(Protocol):
    """One replica, wherever it runs, with at most one call under way."""

    def start(self, call: str, *arguments: Any) -> None:
        """Begin a call."""
        ...

    def result(self) -> Any:
        """The answer of the call that is done.

        Raises:
            ReplicaLostError: If the process is gone; whatever the call raised otherwise.
        """
        ...

    def pulse(self) -> int | None:
        """The newest known sign of life, without waiting; None while there is none."""
        ...

    def kill(self, *, hung: bool = False) -> None:
        """End the process; one that is said to hang may not hear a request."""
        ...


class Host(Protocol):
    """Makes replicas and waits for them."""

    def hire(self, name: str) -> Handle:
        """Start a process for a replica, without waiting for it."""
        ...

    def wait(self, handles: Sequence[Handle], timeout: float) -> list[Handle]:
        """Those whose calls are done; at least one of them, or none after ``timeout`` seconds."""
        ...

    def share(self, value: Any) -> Any:
        """What to pass to several replicas in place of a large argument."""
        ...

    def close(self) -> None:
        """Let go of what the host holds."""
        ...


@dataclass(eq=False)
class Seat:
    """A place for a replica; it is filled again when its replica fails.

    Attributes:
        name: For messages.
        handle: The replica that sits here.
        loaded: Whether it has loaded its models.
        version: Version of the student that it holds; None while unknown or half-synced.
        script: What it is carrying out, if anything.
        task: The task that the script belongs to, to be done again by another replica.
        call: The call under way.
    """

    name: str
    handle: Handle
    loaded: bool = False
    version: int | None = None
    script: Script | None = None
    task: Task | None = None
    call: str = ""
    call_began: float = 0.0
    alive_at: float = 0.0
    last_pulse: int | None = None


@dataclass(eq=False)
class Task:
    """Work for any one replica that holds the present weights.

    Attributes:
        script: Makes the calls; called again if a replica fails at it.
        what: For messages.
        done: Called once the script has ended.
    """

    script: Callable[[Seat], Script]
    what: str
    done: Callable[[], None] | None = None


@dataclass
class FleetCounts:
    """What went wrong so far.

    Attributes:
        failures: Replicas lost, hung, or failed at their work.
        causes: A sentence each.
    """

    failures: int = 0
    causes: list[str] = field(default_factory=list)


class Fleet:
    """Runs tasks on replicas that may fail.

    Args:
        host: Makes replicas.
        settings: Number of replicas, deadlines, and how many failures to bear.
        prepare: Script by which a newly hired replica loads its models.
        catch_up: Script that brings a replica to the present version of the weights.
        present: The present version.
        clock: Seconds.
    """

    def __init__(
        self,
        host: Host,
        settings: PoolSettings,
        prepare: Callable[[Seat], Script],
        catch_up: Callable[[Seat], Script],
        present: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._settings, self._clock = host, settings, clock
        self._prepare, self._catch_up, self._present = prepare, catch_up, present
        self._queue: deque[Task] = deque()
        self._hired, self._started = 0, False
        self.counts = FleetCounts()
        self.seats: list[Seat] = []

    def start(self) -> None:
        """Hire every replica and wait until all have loaded."""
        for _ in range(self._settings.replicas):
            self.seats.append(self._hire())
        while not all(seat.loaded for seat in self.seats):
            self._advance()
        self._started = True

    def run(self, tasks: Sequence[Task]) -> None:
        """Carry out tasks, in this order as replicas become free; returns when all are done.

        Raises:
            TooManyFailuresError: If more replicas failed than the pool was told to bear.
            Exception: What a task's script raised on purpose: mistakes of the caller.
        """
        self._queue.extend(tasks)
        try:
            while self._queue or any(seat.task is not None for seat in self.seats):
                self._hand_out()
                self._advance()
        except BaseException:
            self._queue.clear()
            self._forget_work()
            raise

    def each(self, script: Callable[[Seat], Script], seats: Sequence[Seat]) -> None:
        """Run a script on each of these seats at the same time; one whose replica fails drops out."""
        try:
            for seat in seats:
                self._begin(seat, script(seat), None)
            while any(seat.script is not None and seat in self.seats for seat in seats):
                self._advance()
        except BaseException:
            self._forget_work()
            raise

    def free_seats(self) -> list[Seat]:
        """Seats whose replica has loaded its models and has nothing to do."""
        return [seat for seat in self.seats if seat.loaded and seat.script is None]

    def wait_until_idle(self, *, one: bool = False) -> None:
        """Bring replicas to the present version; returns when all have it, or the first."""
        enough = any if one else all
        while not enough(self._is_ready(seat) for seat in self.seats):
            self._hand_out()
            self._advance()

    def close(self) -> None:
        """End every replica."""
        for seat in self.seats:
            seat.handle.kill()
        self.seats = []
        self._host.close()

    # ---- one round -----------------------------------------------------------------------------------------------

    def _is_ready(self, seat: Seat) -> bool:
        return seat.loaded and seat.script is None and seat.version == self._present()

    def _hand_out(self) -> None:
        """Give every idle replica something to do: the present weights if it lacks them, else the next task."""
        for seat in self.seats:
            if seat.script is not None or not seat.loaded:
                continue
            if seat.version != self._present():
                self._begin(seat, self._catch_up(seat), None)
            elif self._queue:
                task = self._queue.popleft()
                self._begin(seat, task.script(seat), task)

    def _advance(self) -> None:
        """Wait a little for answers, and go on with the scripts of those that came; look after those that hang."""
        busy = {id(seat.handle): seat for seat in self.seats if seat.script is not None}
        assert busy, "nobody has anything to do"
        done = self._host.wait([seat.handle for seat in busy.values()], self._poll_seconds())
        for handle in done:
            self._answer(busy[id(handle)])
        now = self._clock()
        finished = {id(handle) for handle in done}
        for key, seat in busy.items():
            if key not in finished and (complaint := self._hangs(seat, now)):
                self._replace(seat, complaint, None, hung=True)

    def _answer(self, seat: Seat) -> None:
        assert seat.script is not None
        try:
            answer = seat.handle.result()
        except ReplicaLostError as error:
            self._replace(seat, str(error), error)
        except Exception as error:  # the script knows which errors of a call it can deal with
            self._go_on(seat, error=error)
        else:
            self._go_on(seat, answer)

    def _begin(self, seat: Seat, script: Script, task: Task | None) -> None:
        seat.script, seat.task = script, task
        self._go_on(seat)

    def _go_on(self, seat: Seat, answer: Any = None, error: Exception | None = None) -> None:
        assert seat.script is not None
        try:
            call, arguments = seat.script.send(answer) if error is None else seat.script.throw(error)
            seat.call, seat.call_began = call, self._clock()
            seat.alive_at, seat.last_pulse = seat.call_began, None
            seat.handle.start(call, *arguments)
        except StopIteration:
            task, seat.script, seat.task = seat.task, None, None
            if task is not None and task.done is not None:
                task.done()
        except Exception as failure:
            # A mistake of the caller is the same on every replica. A way that damages weights is not, and models that
            # once could be loaded are no mistake either.
            mistake = isinstance(failure, ValueError) and not isinstance(failure, ChecksumMismatchError)
            if mistake and (seat.loaded or not self._started):
                seat.script = seat.task = None
                raise
            self._replace(seat, f"{type(failure).__name__}: {failure}", failure)
        except BaseException:
            seat.script = seat.task = None
            raise

    # ---- failures ------------------------------------------------------------------------------------------------

    def _hangs(self, seat: Seat, now: float) -> str | None:
        """A complaint about a replica that takes too long, or None."""
        pulse = seat.handle.pulse()
        if pulse is not None and pulse != seat.last_pulse:
            seat.last_pulse, seat.alive_at = pulse, now
        settings, took = self._settings, now - seat.call_began
        if not seat.loaded:
            if took > settings.start_timeout:
                return f"it had not loaded its models after {took:.0f} s (start_timeout {settings.start_timeout:g} s)"
            return None
        if settings.unit_timeout is not None and took > settings.unit_timeout:
            return f"{seat.call} took more than unit_timeout = {settings.unit_timeout:g} s"
        if now - seat.alive_at > settings.stall_timeout:
            return f"{seat.call} showed no sign of life for {now - seat.alive_at:.0f} s"
        return None

    def _replace(self, seat: Seat, complaint: str, error: BaseException | None, *, hung: bool = False) -> None:
        """End a replica, put its task back and hire another."""
        task, counts = seat.task, self.counts
        seat.handle.kill(hung=hung)
        counts.failures += 1
        counts.causes.append(f"{seat.name}: {complaint}")
        if task is not None:
            self._queue.appendleft(task)
        if counts.failures > self._settings.max_failures:
            raise TooManyFailuresError(
                f"{counts.failures} replicas of the pool failed, max_failures is {self._settings.max_failures}; the "
                f"last was {counts.causes[-1]}; mend the cause, and go on from what was saved"
            ) from error
        logger.warning(
            "%s failed (%s) and is replaced%s; failure %d of at most %d",
            seat.name,
            complaint,
            "" if task is None else f", {task.what} is done again",
            counts.failures,
            self._settings.max_failures,
        )
        self.seats[self.seats.index(seat)] = self._hire()

    def _hire(self) -> Seat:
        self._hired += 1
        name = f"replica {self._hired}"
        seat = Seat(name, self._host.hire(name))
        self._begin(seat, self._prepare(seat), None)
        return seat

    def _forget_work(self) -> None:
        """What replicas are at is of no use any more; they are free once their calls are done."""
        for seat in self.seats:
            if seat.script is not None and seat.loaded:
                seat.version = seat.version if seat.task is not None else None
                seat.script.close()
                seat.script, seat.task = _finish_quietly(seat.call), None
                next(seat.script)

    def _poll_seconds(self) -> float:
        limits = [_POLL_SECONDS, self._settings.stall_timeout / 4]
        if self._settings.unit_timeout is not None:
            limits.append(self._settings.unit_timeout / 4)
        return min(limits)


def _finish_quietly(call: str) -> Script:
    """Stands for a call that is under way and whose answer nobody wants."""
    try:
        yield call, ()
    except Exception as error:  # nobody waits for this answer
        logger.debug("a call that was given up ended with %s", error)
