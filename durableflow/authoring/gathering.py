"""The calls of ``Step`` that run branches side by side: gather, map, race (design 7).

``gather`` has an overload for each number of branches up to six: its tuple has a type for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, cast, overload

from durableflow.authoring import group_checks
from durableflow.authoring.facade import SyncFacade
from durableflow.authoring.undo import RollbackOption, Winner
from durableflow.core.durations import Duration
from durableflow.core.retries import Retries

A = TypeVar("A")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")


class Gathering(SyncFacade):
    """The part of ``Step`` that runs branches side by side."""

    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        b5: Callable[[], T5],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4, T5]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        b5: Callable[[], T5],
        b6: Callable[[], T6],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4, T5, T6]: ...
    @overload
    def gather(
        self,
        name: str,
        /,
        *branches: Callable[[], T],
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T, ...]: ...
    @overload
    def gather(
        self, name: str, b1: Callable[[], T1], /, *, concurrency: int | None = None, return_exceptions: Literal[True]
    ) -> tuple[T1 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception, T3 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        b5: Callable[[], T5],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception, T5 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        b5: Callable[[], T5],
        b6: Callable[[], T6],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception, T5 | Exception, T6 | Exception]: ...
    @overload
    def gather(
        self, name: str, /, *branches: Callable[[], T], concurrency: int | None = None, return_exceptions: bool
    ) -> tuple[T | Exception, ...]: ...

    def gather(
        self,
        name: str,
        /,
        *branches: Callable[[], Any],
        concurrency: int | None = None,
        return_exceptions: bool = False,
    ) -> Any:
        """Run the branches at the same time and return their results in their order (design 7).

        A branch is a function without arguments that makes durable calls of its own; sleeps, waits and approvals in it hold
        up nothing but itself. ``concurrency``: how many branches run at once (None: as many as the process allows); one that
        waits does not count. All branches settle, then an ExceptionGroup tells what failed; with ``return_exceptions`` the
        errors come in the tuple instead. Two lambdas of one loop that share its variable are refused. Raises InvalidConfig.
        """
        return self._runtime.call(group_checks.gather_call(name, branches, concurrency, return_exceptions))

    @overload
    def map(
        self,
        name: str,
        fn: Callable[[A], T],
        items: Iterable[A],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        rollback: RollbackOption[T] | None = None,
        sensitive: bool = False,
        atomic: bool = False,
    ) -> list[T]: ...
    @overload
    def map(
        self,
        name: str,
        fn: Callable[[A], T],
        items: Iterable[A],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: bool,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        rollback: RollbackOption[T] | None = None,
        sensitive: bool = False,
        atomic: bool = False,
    ) -> list[T | Exception]: ...
    def map(
        self,
        name: str,
        fn: Callable[[A], T],
        items: Iterable[A],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: bool = False,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        rollback: RollbackOption[T] | None = None,
        sensitive: bool = False,
        atomic: bool = False,
    ) -> Any:
        """Run ``fn(item)`` for each item, one step per item, side by side; the results in the order of ``items``.

        ``items`` must be the same, in the same order, at every replay: a list, not a set. ``concurrency``: how many run at
        once. The other options are those of ``do`` and hold for each item. All items settle, then an ExceptionGroup tells
        what failed; with ``return_exceptions`` the errors come in the list instead. Raises InvalidConfig, CodecError,
        LimitExceeded, NonDeterminismError for changed items.
        """
        return self._runtime.call(
            group_checks.map_call(
                name,
                fn,
                items,
                concurrency,
                return_exceptions,
                retries=retries,
                timeout=timeout,
                rollback=rollback,
                sensitive=sensitive,
                atomic=atomic,
            )
        )

    def race(self, name: str, /, **branches: Callable[[], T]) -> Winner[T]:
        """Let branches that only wait (for an event, an approval, a time, a child) race; returns the name and value of
        the one that settled first, by the time at which it settled, ties by position (design 7).

        The others are cancelled. A race of bodies belongs inside one step. The winner's error is raised. Raises
        InvalidConfig.
        """
        return cast(Winner[T], self._runtime.call(group_checks.race_call(name, branches)))
