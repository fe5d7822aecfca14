"""What a test may say of log lines: threads of earlier tests may write lines of other loggers meanwhile."""

from __future__ import annotations

import logging

import pytest


def logged(caplog: pytest.LogCaptureFixture, logger: str = "durableflow.cluster") -> list[logging.LogRecord]:
    """The records of one logger."""
    return [record for record in caplog.records if record.name == logger]


def levels(caplog: pytest.LogCaptureFixture, logger: str = "durableflow.cluster") -> list[str]:
    """Their levels."""
    return [record.levelname for record in logged(caplog, logger)]
