"""A secret key for a project that was given none: made once, kept outside the repository."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from django.core.management.utils import get_random_secret_key


def secret_key(path: Path) -> str:
    """The key stored at ``path``; the first caller makes it, readable by its own user alone.

    Cluster and web server may start at the same moment: a hard link puts the whole file there or fails, so that both
    read the same key.
    """
    if not path.exists():
        handle, draft = tempfile.mkstemp(dir=path.parent)  # mode 0600
        with os.fdopen(handle, "w") as stream:
            stream.write(get_random_secret_key())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
    return path.read_text()
