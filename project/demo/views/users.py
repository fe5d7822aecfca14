"""Who asks."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest


def user_of(request: HttpRequest) -> User:
    """The user of a request whose view asks for a login."""
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user
