"""Files whose name derives from what is in them."""

from __future__ import annotations

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage


def store(name: str, content: bytes) -> str:
    """Write a file and return its stored name. It replaces what an interrupted attempt may have left."""
    default_storage.delete(name)
    return default_storage.save(name, ContentFile(content))
