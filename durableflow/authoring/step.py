"""The synchronous facade of durable calls (api.md, ``Step``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, cast

from durableflow.authoring import calls, group_checks
from durableflow.authoring.calls import DEFAULT, Default
from durableflow.authoring.children import Children
from durableflow.authoring.gathering import Gathering
from durableflow.authoring.undo import RollbackOption
from durableflow.core.answers import Decision, Event
from durableflow.core.durations import Duration
from durableflow.core.retries import Retries

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import Group
    from django.forms import Form

    from durableflow.models import PendingEvent

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Step(Gathering, Children):
    """The durable calls of one execution of a synchronous ``run``.

    Every call is recorded in the journal: at a replay it returns (or raises) what was recorded, and its body does not
    run again. A call that has to wait unwinds ``run``; the instance goes on from there when it is time.
    """

    def do(
        self,
        name: str,
        fn: Callable[[*Ts], T],
        /,
        *args: *Ts,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        rollback: RollbackOption[T] | None = None,
        sensitive: bool = False,
        atomic: bool = False,
    ) -> T:
        """Run ``fn(*args)`` once and record its result (design 5, 6).

        ``retries``: after a failed attempt (a number is a limit); ``timeout`` per attempt; both inherited from ``Meta``
        and settings. ``rollback``: undoes the step where the run fails later, or is terminated with ``rollback=True``:
        a function of one argument, the ``Undo``, or ``Rollback(function, retries=..., timeout=...)``. ``sensitive``:
        result and error are shown nowhere outside ``run``. ``atomic``: body and checkpoint are one transaction in the
        database of our tables: exactly once for what the body writes there. The first execution's options are stored and
        stay. Raises the body's error (rebuilt) after the last attempt, StepTimeout, WorkerLost, InvalidConfig, CodecError,
        LimitExceeded.
        """
        return cast(T, self._runtime.call(calls.do_call(name, fn, args, retries, timeout, rollback, sensitive, atomic)))

    def sleep(self, name: str, duration: Duration, /) -> None:
        """Go on after ``duration`` (at most 10 years), counted from the first time this call is reached. Costs
        nothing meanwhile."""
        self._runtime.call(calls.sleep_call(name, duration))

    def sleep_until(self, name: str, when: datetime | float, /) -> None:
        """Go on at ``when``: an aware datetime or seconds since the epoch. A moment in the past returns at once and
        is recorded."""
        self._runtime.call(calls.sleep_until_call(name, when))

    def wait_for_event(
        self,
        name: str,
        /,
        *,
        type: str | Sequence[str],
        timeout: Duration | Default | None = DEFAULT,
        notify: Callable[[PendingEvent], object] | None = None,
    ) -> Event:
        """Wait for an event of one of the types, sent with ``send_event`` (also before this call is reached).

        ``timeout``: DEFAULT the setting EVENT_TIMEOUT, None for ever, 0 asks the inbox once. ``notify(pending_event)``:
        a recorded step body that tells somebody; it is skipped when the answer is already there (design 5). Raises
        EventTimeout.
        """
        return cast(Event, self._runtime.call(calls.event_call(name, type, timeout, notify)))

    def wait_for_approval(
        self,
        name: str,
        /,
        *,
        title: str = "",
        description: str = "",
        context: Mapping[str, Any] | None = None,
        form: type[Form] | None = None,
        users: Iterable[AbstractBaseUser | int] = (),
        groups: Iterable[Group | str] = (),
        permission: str = "",
        allow_requester: bool = True,
        timeout: Duration | Default | None = DEFAULT,
        notify: Callable[[PendingEvent], object] | None = None,
    ) -> Decision:
        """Wait until a person decides, in the admin, over the API or by a link (design 8).

        Shown to those who may decide: ``users``, ``groups``, holders of ``permission``; if none is named, holders of
        ``durableflow.decide_pendingevent``. ``allow_requester=False`` bars the one who started the instance. ``form``:
        a form class at the top level of a module; its cleaned data comes back in ``decision.data``. ``bool(decision)``
        is ``approved``. Raises EventTimeout; InvalidConfig for an unknown group or user, or ``allow_requester=False``
        without a creator.
        """
        return cast(
            Decision,
            self._runtime.call(
                calls.approval_call(
                    name,
                    title=title,
                    description=description,
                    context=context,
                    form=form,
                    users=users,
                    groups=groups,
                    permission=permission,
                    allow_requester=allow_requester,
                    timeout=timeout,
                    notify=notify,
                )
            ),
        )

    def patched(self, patch_id: str, /) -> bool:
        """Whether this run takes the new path of changed code (design 6): true where nothing behind this point is recorded
        when the run first comes here, false for a run that was beyond it before the change.

        True is recorded, in one write, and stays. The first answer counts for the whole run, in a branch for that branch.
        An id stands for one change; the call can be taken out once no run needs the old path. Raises ValueError for a bad id.
        """
        return cast(bool, self._runtime.call(group_checks.patch_call(patch_id)))

    def now(self) -> datetime:
        """The time of the first execution of this call, in UTC; recorded (one write)."""
        return cast(datetime, self._runtime.call(calls.NowCall(name="now")))

    def set_progress(self, value: Any, /) -> None:
        """Show ``value`` as the instance's progress outside. Not part of the journal: does nothing while replaying."""
        self._runtime.set_progress(value)
