"""The pytest plugin (entry point ``durableflow``).

pytest loads it before Django is set up: it imports the kit when a test asks for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from durableflow.testing.kit import Harness

_HARNESS: pytest.StashKey[Harness] = pytest.StashKey()


def _harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    kit: Any = import_module("durableflow.testing.kit")
    # A process that the engine ends must not take its last words with it.
    with kit.open_harness(before_exit=lambda: capture and capture.suspend(in_=True)) as harness:
        request.node.stash[_HARNESS] = harness
        yield harness
        del request.node.stash[_HARNESS]


if find_spec("pytest_django"):
    # Named as an argument: pytest-django sets up only those databases that the collected tests ask for by name.
    @pytest.fixture
    def workflows(request: pytest.FixtureRequest, db: None) -> Iterator[Harness]:
        """A ``durableflow.testing.Harness`` for this test, which gets the database as by pytest-django's ``db``."""
        yield from _harness(request)
else:

    @pytest.fixture
    def workflows(request: pytest.FixtureRequest) -> Iterator[Harness]:
        """A ``durableflow.testing.Harness`` for this test."""
        yield from _harness(request)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """After a test that has passed so far: fail it if one of its mocks was not used."""
    result = yield
    harness = item.stash.get(_HARNESS, None)
    if harness is not None and (message := import_module("durableflow.testing.kit").unused_mocks(harness)):
        pytest.fail(message, pytrace=False)
    return result
