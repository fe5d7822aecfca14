"""What the OpenAPI schema says about errors and headers of our endpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from durableflow.api.answers import ErrorAnswer
from durableflow.api.bodies import Body

Method = TypeVar("Method", bound=Callable[..., Any])

MEANINGS: Final = {
    400: "Invalid: nothing was stored. `fields` says what is wrong.",
    401: "Not logged in.",
    403: "Not allowed: nothing was stored.",
    404: "It does not exist, or the user may not see it.",
    409: "It does not fit the present state: nothing was stored. `code` says why.",
    413: "Too large: nothing was stored.",
    422: "The Idempotency-Key was used with another body.",
    501: "The project is not served by an ASGI server.",
}

IDEMPOTENCY_KEY: Final = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Makes the request safe to repeat: the same key and body give the first answer again.",
)

ROW_ID: Final = OpenApiParameter("id", int, OpenApiParameter.PATH)
STEP_ID: Final = OpenApiParameter("step_id", int, OpenApiParameter.PATH)


class ClosedBody(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Bodies take no other keys than those that the schema names, and it says so."""

    target_class = Body
    match_subclasses = True

    def map_serializer(self, auto_schema: AutoSchema, direction: Any) -> Any:
        """What the serializer says, and no more."""
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)  # type: ignore[no-untyped-call]
        return {**schema, "additionalProperties": False}


def responses(code: int, answer: Any, *errors: int) -> dict[int, Any]:
    """What an endpoint answers: ``answer`` with ``code``, and errors: those of every endpoint and its own."""
    found: dict[int, Any] = {code: answer}
    for error in (401, 403, *errors):
        found[error] = OpenApiResponse(ErrorAnswer, MEANINGS[error])
    return found


def documented(**told: Any) -> Callable[[Method], Method]:
    """``extend_schema`` for a method of our views, whatever the project's ``DEFAULT_SCHEMA_CLASS`` is.

    On a method ``extend_schema`` extends the project's default, and DRF's own default cannot describe anything.
    """

    def decorate(method: Method) -> Method:
        method.kwargs = {"schema": AutoSchema}  # type: ignore[attr-defined]
        return extend_schema(**told)(method)

    return decorate
