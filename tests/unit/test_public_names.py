"""The package's public names (api.md)."""

from __future__ import annotations

import durableflow
from durableflow.core import exceptions


def test_every_public_name_resolves() -> None:
    assert [name for name in durableflow.__all__ if not hasattr(durableflow, name)] == []


def test_errors_can_be_imported_by_the_name_that_they_show() -> None:
    shown = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, exceptions.DurableflowError)
    }
    assert shown <= set(durableflow.__all__)
