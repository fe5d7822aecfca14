"""The package's public names (api.md)."""

from __future__ import annotations

import durableflow
from durableflow.core import exceptions


def test_every_public_name_resolves() -> None:
    assert [name for name in durableflow.__all__ if not hasattr(durableflow, name)] == []


AUTHORS = """
    Workflow WorkflowOptions WorkflowEvent Priority Step AsyncStep DEFAULT Event Decision StepContext get_step_context
    Undo Rollback Winner Retries Retention drain
"""
ERRORS = """
    NonRetryableError StepFailed StepTimeout EventTimeout WorkflowTimeout WorkflowFailed WorkerLost NonDeterminismError
    InstanceAlreadyExists InvalidTransition StaleDecision IdempotencyConflict SuspensionSwallowed CodecError LimitExceeded
"""


def test_the_names_of_the_interface() -> None:
    """Api, "durableflow"."""
    assert set(AUTHORS.split()) | set(ERRORS.split()) <= set(durableflow.__all__)
    assert all(issubclass(getattr(durableflow, name), durableflow.DurableflowError) for name in ERRORS.split())


def test_errors_can_be_imported_by_the_name_that_they_show() -> None:
    shown = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, exceptions.DurableflowError)
    }
    assert shown <= set(durableflow.__all__)
