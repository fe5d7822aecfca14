"""What the server imports once that the sender is forked from."""

from __future__ import annotations

import django

django.setup()

from tests.chaos import sender, workflows  # noqa: E402, F401
