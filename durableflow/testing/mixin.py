"""``self.workflows`` for Django's test cases."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING

from durableflow.testing.kit import Harness, open_harness, unused_mocks

if TYPE_CHECKING:
    _Base = unittest.TestCase
else:
    _Base = object


class WorkflowTestMixin(_Base):
    """Put it before the test case: ``class OrderTests(WorkflowTestMixin, TestCase)``. A ``setUp`` of your own calls
    ``super().setUp()`` first."""

    workflows: Harness

    def setUp(self) -> None:
        """Open a harness for this test."""
        super().setUp()
        self.workflows = self.enterContext(open_harness())

    def doCleanups(self) -> None:  # noqa: N802  the name is unittest's
        """Look whether each mock was used, before the harness ends."""
        outcome = getattr(self, "_outcome", None)
        # A test that has failed or was skipped could not use them all.
        if outcome is not None and outcome.success:
            self.addCleanup(self._check_mocks)
        super().doCleanups()

    def _check_mocks(self) -> None:
        if message := unused_mocks(self.workflows):
            raise self.failureException(message)
