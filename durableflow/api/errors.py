"""Errors as answers: ``{"code", "detail", "fields"?}``, the same for every endpoint (api.md, "REST").

``code`` is for programs and never changes with the language, ``detail`` is for people. Set on our views alone: the
project's own exception handler is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import (
    NON_FIELD_ERRORS,
    ObjectDoesNotExist,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db.models import ProtectedError, RestrictedError
from django.http import Http404
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import set_rollback

from durableflow.core.exceptions import (
    CodecError,
    IdempotencyConflict,
    InstanceAlreadyExists,
    InvalidTransition,
    LimitExceeded,
    StaleDecision,
)


class TooLarge(exceptions.APIException):
    """The body of a request is larger than any that could be stored."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"
    default_detail = "The request is too large."


class KeyReused(exceptions.APIException):
    """An ``Idempotency-Key`` came again with another body."""

    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY
    default_code = "idempotency_conflict"
    default_detail = (
        "This Idempotency-Key was used with another request. Send the same request again, or take a new key."
    )


def handle(error: Exception, context: Any) -> Response | None:
    """The exception handler of our views. None: not one of ours, a server error.

    Like DRF's own it marks an ``ATOMIC_REQUESTS`` transaction for rollback, so that a refused request has stored
    nothing.
    """
    answer = _answer(error)
    if answer is None:
        return None
    code, body = answer
    set_rollback()
    return Response(body, status=code, headers=_headers(error))


def body_of(code: str, detail: Any, **more: Any) -> dict[str, Any]:
    """The body of an error."""
    return {"code": code, "detail": str(detail), **more}


def _answer(error: Exception) -> tuple[int, dict[str, Any]] | None:
    if isinstance(error, exceptions.ValidationError):
        return 400, _invalid(error.detail)
    if isinstance(error, exceptions.APIException):
        codes = error.get_codes()
        return error.status_code, body_of(codes if isinstance(codes, str) else error.default_code, error.detail)
    if isinstance(error, DjangoValidationError):
        return 400, _invalid(getattr(error, "message_dict", None) or error.messages)
    if isinstance(error, PermissionDenied):
        return 403, body_of(
            getattr(error, "code", "permission_denied"), str(error) or exceptions.PermissionDenied.default_detail
        )
    if isinstance(error, Http404 | ObjectDoesNotExist):
        return 404, body_of("not_found", exceptions.NotFound.default_detail)
    if isinstance(error, InvalidTransition):
        return 409, _refused(error)
    if isinstance(error, IdempotencyConflict):
        return 409, body_of("idempotency_conflict", error)
    if isinstance(error, InstanceAlreadyExists):
        return 409, body_of("already_exists", error)
    if isinstance(error, ProtectedError | RestrictedError):
        return 409, body_of("protected", _protection(error))
    if isinstance(error, LimitExceeded | RequestDataTooBig):
        return 413, body_of("too_large", error)
    if isinstance(error, CodecError):
        return 400, body_of("invalid", error)
    if isinstance(error, SuspiciousOperation):
        return 400, body_of("bad_request", "The request cannot be read.")
    return None


def _protection(error: ProtectedError | RestrictedError) -> str:
    """Which tables of the project keep a row from being deleted; not which rows, which may be for other eyes."""
    found = error.protected_objects if isinstance(error, ProtectedError) else error.restricted_objects
    names = sorted({str(row._meta.verbose_name) for row in found})
    return f"It is kept because others refer to it: {', '.join(names)}."


def _refused(error: InvalidTransition) -> dict[str, Any]:
    body = body_of(error.code, error, status=error.status)
    if isinstance(error, StaleDecision) and error.code == "already_decided":
        body |= {"by": error.by, "at": error.at}
    return body


def _invalid(detail: Any) -> dict[str, Any]:
    """Field errors under ``fields``, what belongs to no field in ``detail``."""
    if not isinstance(detail, Mapping):
        return body_of("invalid", _text(detail))
    general = {NON_FIELD_ERRORS, api_settings.NON_FIELD_ERRORS_KEY}
    fields: dict[str, list[str]] = {}
    for name, found in detail.items():
        if name not in general:
            fields |= _messages(str(name), found)
    texts = [_text(found) for name, found in detail.items() if name in general]
    texts += [f"{name}: {_text(found)}" for name, found in fields.items()]
    return body_of("invalid", " ".join(texts), **({"fields": fields} if fields else {}))


def _messages(name: str, found: Any) -> dict[str, list[str]]:
    """The messages of a field; those of one inside another are under both names, as in ``from_step.count``."""
    if isinstance(found, Mapping):
        inner: dict[str, list[str]] = {}
        for key, value in found.items():
            own = key in (NON_FIELD_ERRORS, api_settings.NON_FIELD_ERRORS_KEY)
            inner |= _messages(name if own else f"{name}.{key}", value)
        return inner
    return {name: [str(message) for message in found] if isinstance(found, list | tuple) else [str(found)]}


def _text(found: Any) -> str:
    if isinstance(found, Mapping):
        return " ".join(f"{name}: {_text(inner)}" for name, inner in found.items())
    return " ".join(str(message) for message in found) if isinstance(found, list | tuple) else str(found)


def _headers(error: Exception) -> dict[str, str]:
    headers = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = str(challenge)
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = f"{wait:.0f}"
    return headers
