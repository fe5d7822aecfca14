"""The asynchronous facade of durable calls (api.md, ``AsyncStep``): the calls of ``Step`` with ``await``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

from durableflow.authoring import calls, group_checks
from durableflow.authoring.async_children import AsyncChildren
from durableflow.authoring.async_gathering import AsyncGathering
from durableflow.authoring.calls import DEFAULT, Default
from durableflow.authoring.facade import Answer
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


class AsyncStep(AsyncGathering, AsyncChildren):
    """The durable calls of one execution of an ``async def run``.

    Each call is to be awaited, or given to a task (``asyncio.create_task``, a TaskGroup, ``asyncio.gather``). Its options
    are checked and its place in the program is taken when it is made, not when it is awaited, so that replays do not depend
    on timing. A call that has to wait stays pending; when nothing but such calls is left, the instance is put away until it
    can go on. Not awaited are ``continue_as_new``, ``uuid4``, ``random`` and the properties.
    """

    @overload
    def do(
        self,
        name: str,
        fn: Callable[[*Ts], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        rollback: RollbackOption[T] | None = None,
        sensitive: bool = False,
        atomic: bool = False,
    ) -> Answer[T]: ...
    @overload
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
    ) -> Answer[T]: ...
    def do(
        self,
        name: str,
        fn: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        rollback: RollbackOption[Any] | None = None,
        sensitive: bool = False,
        atomic: bool = False,
    ) -> Answer[Any]:
        """Run ``fn(*args)`` once and record its result. As ``Step.do``; ``fn`` may be an async function, which runs in the
        loop, while a plain one runs in the instance's own thread. A timeout cancels an async body."""
        return self._runtime.acall(calls.do_call(name, fn, args, retries, timeout, rollback, sensitive, atomic))

    def sleep(self, name: str, duration: Duration, /) -> Answer[None]:
        """Go on after ``duration``. As ``Step.sleep``; ``asyncio.sleep`` is not durable."""
        return self._runtime.acall(calls.sleep_call(name, duration))

    def sleep_until(self, name: str, when: datetime | float, /) -> Answer[None]:
        """Go on at ``when``: an aware datetime or seconds since the epoch. As ``Step.sleep_until``."""
        return self._runtime.acall(calls.sleep_until_call(name, when))

    def wait_for_event(
        self,
        name: str,
        /,
        *,
        type: str | Sequence[str],
        timeout: Duration | Default | None = DEFAULT,
        notify: Callable[[PendingEvent], object] | None = None,
    ) -> Answer[Event]:
        """Wait for an event of one of the types. As ``Step.wait_for_event``."""
        return self._runtime.acall(calls.event_call(name, type, timeout, notify))

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
    ) -> Answer[Decision]:
        """Wait until a person decides. As ``Step.wait_for_approval``."""
        return self._runtime.acall(
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
        )

    def patched(self, patch_id: str, /) -> Answer[bool]:
        """Whether this run takes the new path of changed code. As ``Step.patched``."""
        return self._runtime.acall(group_checks.patch_call(patch_id))

    def now(self) -> Answer[datetime]:
        """The time of the first execution of this call, in UTC; recorded (one write)."""
        return self._runtime.acall(calls.NowCall(name="now"))

    def set_progress(self, value: Any, /) -> Answer[None]:
        """Show ``value`` as the instance's progress outside. Not part of the journal: does nothing while replaying."""
        return self._runtime.set_progress(value)
