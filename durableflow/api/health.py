"""Endpoint: whether due work is executed (api.md, "REST"; case OPS-14)."""

from __future__ import annotations

from typing import Any

from django.db import Error, transaction
from django.utils.cache import add_never_cache_headers
from django.utils.decorators import method_decorator
from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow import health
from durableflow.api.answers import Answer, NamedInstance, one_of
from durableflow.api.base import ApiView, SignedIn
from durableflow.api.docs import documented
from durableflow.core.statuses import HeartbeatKind
from durableflow.health import Level
from durableflow.health.report import as_dict
from durableflow.models.permissions import VIEW, holds


class ReasonAnswer(Answer):
    """Why it is not ok. ``code``: ``database``, ``no_worker``, ``overdue``, ``undelivered`` or ``blocked``."""

    level = one_of(Level)
    code = serializers.CharField()
    text = serializers.CharField()


class DueAnswer(NamedInstance):
    """The instance that has been due for the longest time."""

    seconds = serializers.FloatField()


class BlockedAnswer(NamedInstance):
    """An instance that needs a person."""

    reason = serializers.CharField()


class ProcessAnswer(Answer):
    """A group of processes that executes workflows. Times are seconds before the answer."""

    kind = one_of(HeartbeatKind.values)
    host = serializers.CharField()
    pid = serializers.CharField()
    workers = serializers.IntegerField()
    busy = serializers.IntegerField()
    version = serializers.CharField()
    started = serializers.FloatField()
    seen = serializers.FloatField()
    last_claim = serializers.FloatField(allow_null=True)


class HealthAnswer(Answer):
    """Everybody gets ``status``; who may view all instances gets the rest too.

    Times are seconds before the answer; counts stop at 1001, which means "more than 1000". ``holds``: instances on
    hold, by reason.
    """

    status = one_of(Level)
    reasons = ReasonAnswer(many=True, required=False)
    oldest_due = DueAnswer(allow_null=True, required=False)
    overdue = serializers.IntegerField(required=False)
    workers = serializers.IntegerField(required=False)
    busy = serializers.IntegerField(required=False)
    last_seen = serializers.FloatField(allow_null=True, required=False)
    last_claim = serializers.FloatField(allow_null=True, required=False)
    undelivered = serializers.FloatField(allow_null=True, required=False)
    blocked = serializers.IntegerField(required=False)
    blocked_latest = BlockedAnswer(many=True, required=False)
    holds = serializers.DictField(child=serializers.IntegerField(), required=False)
    processes = ProcessAnswer(many=True, required=False)


class ProbeOrSignedIn(SignedIn):
    """Reading needs no login: a load balancer has none. It gets one word."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether it only reads, or somebody is logged in."""
        return request.method in ("GET", "HEAD") or super().has_permission(request, view)


# Not in the request's transaction: where the database is away that cannot even begin.
@method_decorator(transaction.non_atomic_requests, name="dispatch")
class HealthView(ApiView):
    """Health of the workflows."""

    permission_classes = (ProbeOrSignedIn,)
    throttle_classes = ()
    """A throttled probe would take a healthy server out of service."""
    serializer_class = HealthAnswer

    def perform_authentication(self, request: Request) -> None:
        """Only when it is asked who it is: with the database away a session cannot be looked up."""

    @documented(
        operation_id="retrieve_health",
        tags=["health"],
        responses={
            200: OpenApiResponse(HealthAnswer, "`ok` or `warning`."),
            503: OpenApiResponse(
                HealthAnswer, "`critical`: due work is not executed, or the database does not answer."
            ),
        },
    )
    def get(self, request: Request) -> Response:
        """Whether due work is executed.

        Without login only `status`. 503 when critical, so that a probe needs to look at nothing but the code.
        """
        found = health.check()
        code = 503 if found.status is Level.CRITICAL else 200
        response = Response(as_dict(found) if _may_view(request) else {"status": str(found.status)}, status=code)
        add_never_cache_headers(response)
        return response


def _may_view(request: Request) -> bool:
    """Whether it is somebody who may view all instances; not, where the database cannot tell."""
    try:
        return holds(request.user, VIEW)
    except Error:
        return False
