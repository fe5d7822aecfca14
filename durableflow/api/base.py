"""What all our views share. Everything is set here and not in the project's settings, whose other APIs stay as they are
(design 10).

Authentication and throttling are the project's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.http import QueryDict
from drf_spectacular.openapi import AutoSchema
from rest_framework.exceptions import NotFound, ParseError, ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.reverse import reverse
from rest_framework.serializers import Serializer
from rest_framework.settings import api_settings

from durableflow.api.errors import TooLarge, handle
from durableflow.core import registry
from durableflow.core.conf import get_settings
from durableflow.core.jsontext import parse_json
from durableflow.core.names import NAME_PATTERN
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.models.creation import database
from durableflow.models.instance_fields import HEAVY

APP_NAME = "durableflow-api"
NAME = re.compile(NAME_PATTERN)
ROOM_FOR_ESCAPES = 6  # JSON may write one byte of text as six: \u0041
ROOM_FOR_THE_REST = 64 * 1024
KEY_SIZE = 255
NO_INSTANCE = "There is no such workflow instance."
NO_WORKFLOW = "There is no such workflow."
NO_STEP = "There is no such step."


class SignedIn(BasePermission):
    """Deny by default: only active users who have logged in reach a view, which then asks for the right itself."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether somebody is logged in."""
        user: Any = request.user  # None where the project authenticates nobody and has no anonymous user
        return bool(user and user.is_authenticated and user.is_active)


class StrictJsonRenderer(JSONRenderer):
    """JSON that every parser takes, whatever the project's ``STRICT_JSON`` is (case SER-04)."""

    strict = True

    def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The text. Half a character, which a message repeats from a request, can only be written as its escape."""
        try:
            return super().render(data, *args, **kwargs)
        except UnicodeEncodeError:
            return _EscapingRenderer().render(data, *args, **kwargs)


class _EscapingRenderer(JSONRenderer):
    strict = True
    ensure_ascii = True


class BoundedJsonParser(JSONParser):
    """JSON of a bounded size: 413 for a larger body before it is read as a whole, 400 for one that is no JSON."""

    strict = True

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """The decoded body."""
        limits = get_settings().LIMITS
        most = ROOM_FOR_ESCAPES * max(limits.params, limits.payload) + ROOM_FOR_THE_REST
        content = stream.read(most + 1)
        if len(content) > most:
            raise TooLarge
        try:
            return parse_json(content.decode("utf-8-sig"))
        except RecursionError:
            raise ParseError("JSON parse error - it is nested too deeply.") from None
        except ValueError as error:
            raise ParseError(f"JSON parse error - {error}") from error


class ApiView(GenericAPIView[Any]):
    """Base of all our views: JSON in, JSON out, signed in, our errors."""

    permission_classes = (SignedIn,)
    renderer_classes = (StrictJsonRenderer,)
    parser_classes = (BoundedJsonParser,)
    content_negotiation_class = DefaultContentNegotiation
    filter_backends: Any = ()
    filterset_class: Any = None
    pagination_class: Any = None
    query_class: type[Serializer[Any]] | None = None
    """What the query parameters of a GET may say beside filters and pages."""
    delete_query_class: type[Serializer[Any]] | None = None
    """What those of a DELETE may say, which has no body."""
    versioning_class = None
    metadata_class = None
    http_method_names = [name for name in GenericAPIView.http_method_names if name != "options"]
    """``Allow`` tells of what is answered. Browsers' questions before a request of another site are the project's to answer."""
    schema = AutoSchema()

    def get_exception_handler(self) -> Callable[[Exception, Any], Any]:
        """Ours, for our views only."""
        return handle

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Who asks is seen to first. Where lists are narrowed and read on by query parameters, one that means nothing is
        refused like an unknown key of a body: ignored, its answer would be taken for a narrowed one."""
        super().initial(request, *args, **kwargs)
        if (known := self.known_parameters(request.method)) is not None:
            unknown = sorted(set(request.query_params) - known)
            if unknown:
                text = f"Unknown query parameter. Known ones: {', '.join(sorted(known)) or 'none'}."
                raise ValidationError({name: [text] for name in unknown})

    def known_parameters(self, method: str | None) -> set[str] | None:
        """The query parameters that a request may have; None: whatever proxies add."""
        found: set[Any] = {api_settings.URL_FORMAT_OVERRIDE}
        if method == "DELETE" and self.delete_query_class is not None:
            found |= set(self.delete_query_class().fields)
        elif method in ("GET", "HEAD") and (self.pagination_class is not None or self.query_class is not None):
            found |= {
                getattr(self.pagination_class, name, None) for name in ("cursor_query_param", "page_size_query_param")
            }
            found |= set(self.filterset_class.base_filters) if self.filterset_class is not None else set()
            found |= set(self.query_class().fields) if self.query_class is not None else set()
        else:
            return None
        return {name for name in found if name}

    def body(self, serializer: type[Serializer[Any]]) -> dict[str, Any]:
        """The validated body of the request. Raises ValidationError."""
        # An empty form body reads as a QueryDict, whose missing booleans would be False.
        data = {} if isinstance(self.request.data, QueryDict) else self.request.data
        found = serializer(data=data)
        found.is_valid(raise_exception=True)
        return dict(found.validated_data)

    def query(self, serializer: type[Serializer[Any]]) -> dict[str, Any]:
        """The validated query parameters that ``serializer`` knows. Raises ValidationError."""
        found = serializer(data=self.request.query_params.dict())
        found.is_valid(raise_exception=True)
        return dict(found.validated_data)

    def url(self, name: str, *args: Any) -> str:
        """The absolute address of one of our routes, in the namespace in which the project has mounted them."""
        match = getattr(self.request, "resolver_match", None)
        namespace = (match and match.namespace) or APP_NAME
        return str(reverse(f"{namespace}:{name}", args=args, request=self.request))

    def idempotency_key(self) -> str:
        """The request's ``Idempotency-Key``, '' without one. Raises ValidationError for one that cannot be kept."""
        key = self.request.headers.get("Idempotency-Key", "").strip()
        if len(key) > KEY_SIZE or not key.isprintable():
            raise ValidationError({"Idempotency-Key": [f"At most {KEY_SIZE} printable characters are possible."]})
        return key

    # Rows: what the user may not see does not exist, so that foreign and unknown ids are the same 404 (case SEC-04).

    def visible_instances(self, workflow: str | None = None) -> Any:
        """The instances that the user may see, without their big columns; of one workflow, whether ``workflow`` is its name
        now or was once."""
        rows = WorkflowInstance.objects.using(database()).visible_to(self.request.user).light()
        if workflow is None:
            return rows
        # PostgreSQL fails on texts that cannot be stored; those are no names.
        return rows.for_workflow(registry.find(workflow) or workflow) if NAME.fullmatch(workflow) else rows.none()

    def instance(self, workflow: str, instance_id: str, *, whole: bool = False) -> WorkflowInstance:
        """One of them, with all its columns if ``whole``. Raises NotFound."""
        rows = self.visible_instances(workflow)
        cls = registry.find(workflow) or workflow
        rows = rows.with_id(cls, instance_id, first=workflow) if NAME.fullmatch(instance_id) else rows.none()
        found = (rows.defer(None) if whole else rows).first()
        if found is None:
            raise NotFound(NO_INSTANCE)
        return found  # type: ignore[no-any-return]

    def visible_pending_events(self) -> Any:
        """The pending events that the user may see, with their instances."""
        rows = PendingEvent.objects.using(database()).visible_to(self.request.user)
        heavy = [f"instance__{name}" for name in HEAVY]
        return rows.select_related("instance").defer(*heavy).prefetch_related("users", "groups")

    def pending_event(self, pk: int) -> PendingEvent:
        """One of them. Raises NotFound."""
        found = self.visible_pending_events().filter(pk=pk).first()
        if found is None:
            raise NotFound("There is no such pending event.")
        return found  # type: ignore[no-any-return]
