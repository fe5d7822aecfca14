"""The calls of ``AsyncStep`` that run branches side by side: gather, map, race (design 7), as in ``gathering``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, TypeVar, overload

from durableflow.authoring import group_checks
from durableflow.authoring.facade import Answer, AsyncFacade
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


class AsyncGathering(AsyncFacade):
    """The part of ``AsyncStep`` that runs branches side by side."""

    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Answer[tuple[T1]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Answer[tuple[T1, T2]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        b3: Callable[[], Awaitable[T3]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Answer[tuple[T1, T2, T3]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        b3: Callable[[], Awaitable[T3]],
        b4: Callable[[], Awaitable[T4]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Answer[tuple[T1, T2, T3, T4]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        b3: Callable[[], Awaitable[T3]],
        b4: Callable[[], Awaitable[T4]],
        b5: Callable[[], Awaitable[T5]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Answer[tuple[T1, T2, T3, T4, T5]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        b3: Callable[[], Awaitable[T3]],
        b4: Callable[[], Awaitable[T4]],
        b5: Callable[[], Awaitable[T5]],
        b6: Callable[[], Awaitable[T6]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Answer[tuple[T1, T2, T3, T4, T5, T6]]: ...
    @overload
    def gather(
        self,
        name: str,
        /,
        *branches: Callable[[], Awaitable[T]],
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Answer[tuple[T, ...]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> Answer[tuple[T1 | Exception]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> Answer[tuple[T1 | Exception, T2 | Exception]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        b3: Callable[[], Awaitable[T3]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> Answer[tuple[T1 | Exception, T2 | Exception, T3 | Exception]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        b3: Callable[[], Awaitable[T3]],
        b4: Callable[[], Awaitable[T4]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> Answer[tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        b3: Callable[[], Awaitable[T3]],
        b4: Callable[[], Awaitable[T4]],
        b5: Callable[[], Awaitable[T5]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> Answer[tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception, T5 | Exception]]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], Awaitable[T1]],
        b2: Callable[[], Awaitable[T2]],
        b3: Callable[[], Awaitable[T3]],
        b4: Callable[[], Awaitable[T4]],
        b5: Callable[[], Awaitable[T5]],
        b6: Callable[[], Awaitable[T6]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> Answer[
        tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception, T5 | Exception, T6 | Exception]
    ]: ...
    @overload
    def gather(
        self,
        name: str,
        /,
        *branches: Callable[[], Awaitable[T]],
        concurrency: int | None = None,
        return_exceptions: bool,
    ) -> Answer[tuple[T | Exception, ...]]: ...

    def gather(
        self,
        name: str,
        /,
        *branches: Callable[[], Awaitable[Any]],
        concurrency: int | None = None,
        return_exceptions: bool = False,
    ) -> Answer[Any]:
        """Run the branches at the same time and return their results in their order (design 7).

        As ``Step.gather``; a branch is a function without arguments that returns something to await: an async function, or
        ``lambda: step.do(...)``.
        """
        return self._runtime.acall(group_checks.gather_call(name, branches, concurrency, return_exceptions))

    @overload
    def map(
        self,
        name: str,
        fn: Callable[[A], Coroutine[Any, Any, T]],
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
    ) -> Answer[list[T]]: ...
    @overload
    def map(
        self,
        name: str,
        fn: Callable[[A], Coroutine[Any, Any, T]],
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
    ) -> Answer[list[T | Exception]]: ...
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
    ) -> Answer[list[T]]: ...
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
    ) -> Answer[list[T | Exception]]: ...
    def map(
        self,
        name: str,
        fn: Callable[[A], Any],
        items: Iterable[A],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: bool = False,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        rollback: RollbackOption[Any] | None = None,
        sensitive: bool = False,
        atomic: bool = False,
    ) -> Answer[Any]:
        """Run ``fn(item)`` for each item, one step per item, side by side; the results in the order of ``items``.

        As ``Step.map``; ``fn`` may be an async function.
        """
        return self._runtime.acall(
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

    def race(self, name: str, /, **branches: Callable[[], Awaitable[T]]) -> Answer[Winner[T]]:
        """Let branches that only wait (for an event, an approval, a time, a child) race; gives the name and value of
        the one that settled first. As ``Step.race``."""
        return self._runtime.acall(group_checks.race_call(name, branches))
