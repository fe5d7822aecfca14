"""What bodies did, counted outside of the workflow tables, where no rollback can hide a repetition."""

from __future__ import annotations

import os
from pathlib import Path


class Ledger:
    """A file to which threads and processes append lines."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def add(self, line: str) -> None:
        """Append one line, in one write."""
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    @property
    def lines(self) -> list[str]:
        """All lines so far."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, line: str) -> int:
        """How often ``line`` is there."""
        return self.lines.count(line)
