"""Mocks of steps: what they answer, which call they are for, whether anybody used them (case TST-03)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from durableflow.core import codec
from durableflow.testing.addresses import Address
from durableflow.testing.skips import Skips


@dataclass
class ErrorMock:
    """``mock_error``: the next ``left`` attempts fail (None: all of them). ``method``: by which it was mocked."""

    address: Address
    error: BaseException
    left: int | None
    method: str = "mock_error"
    used: bool = False

    def raise_error(self) -> None:
        """Fail as a body would; the error's own past is forgotten, because one object may be raised many times."""
        self.used = True
        if self.left is not None:
            self.left -= 1
        self.error.__context__ = None
        raise self.error.with_traceback(None)


@dataclass
class ResultMock:
    """``mock_result``: the stored text of the value, so that nothing that happens to the value later has an effect."""

    address: Address
    text: str
    used: bool = False

    def give(self) -> Any:
        """The value, a new copy each time."""
        self.used = True
        return codec.loads(self.text)


@dataclass
class Mocks:
    """All mocks of one harness. Errors come first, in the order in which they were mocked; then the most precise result."""

    errors: list[ErrorMock] = field(default_factory=list)
    results: dict[Address, ResultMock] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)
    skips: Skips = field(default_factory=Skips)
    seen: dict[str, None] = field(default_factory=dict)

    def add_result(self, address: Address, value: Any) -> None:
        """Raises ValueError for a second result of one address, CodecError for a value that no step could return."""
        if address in self.results:
            raise ValueError(f"mock_result({address}) is there already: which of the two values is meant?")
        self.results[address] = ResultMock(address, codec.dumps(value, what=f"mock_result({address})"))

    def add_error(self, address: Address, error: BaseException, times: int | None, method: str = "mock_error") -> None:
        """Raises TypeError, ValueError for what cannot be raised."""
        if not isinstance(error, BaseException):
            raise TypeError(f"{method}({address}): the error must be an instance of an exception, not {error!r}.")
        if times is not None and (type(times) is not int or times < 1):
            raise ValueError(
                f"{method}({address}): times must be at least 1, or None for every attempt, not {times!r}."
            )
        self.errors.append(ErrorMock(address, error, times, method))

    def body(self, workflow: str, name: str, count: int) -> Callable[[], Any] | None:
        """What to run in place of a step's body; None if nobody has mocked it."""
        self.seen[name] = None
        for error in self.errors:
            if error.left != 0 and error.address.matches(workflow, name, count):
                return error.raise_error
        found = [mock for mock in self.results.values() if mock.address.matches(workflow, name, count)]
        return max(found, key=lambda mock: mock.address.precision).give if found else None

    def take_crash(self, name: str) -> bool:
        """Whether the process has to die now, after the body of this step."""
        if name not in self.crashes:
            return False
        self.crashes.remove(name)
        return True

    def unused(self) -> str:
        """What nobody has used, as a message; '' if all is well."""
        names = [f"{mock.method}({mock.address})" for mock in self.errors if not mock.used]
        names += [f"mock_result({mock.address})" for mock in self.results.values() if not mock.used]
        names += [f"crash_before_checkpoint({name!r})" for name in self.crashes]
        skipped = self.skips.unused()
        if not names and not skipped:
            return ""
        told = f"Nothing has used {', '.join(names + skipped)}."
        if names:
            told += f" Steps whose body was due in this test: {_listed(self.seen)}."
        if skipped:
            told += f" What waited for its time in this test: {_listed(self.skips.seen)}."
        return told


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
