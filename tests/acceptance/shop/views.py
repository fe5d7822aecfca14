from __future__ import annotations

import json
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from durableflow import InvalidTransition
from durableflow.models import WorkflowInstance
from shop.workflows import Checkout, Settlement


def verified(request: HttpRequest) -> bool: return True


@require_POST
@transaction.atomic                                   # order and workflow commit together, or neither
def place_order(request: HttpRequest, order: Any) -> JsonResponse:
    order.checkout, created = Checkout.get_or_create({"cart_id": order.pk}, instance_id=f"order-{order.pk}", created_by=request.user)
    order.save(update_fields=["checkout"])
    return JsonResponse({"instance_id": order.checkout.instance_id, "created": created}, status=202)


@csrf_exempt
@require_POST
def payment_webhook(request: HttpRequest) -> HttpResponse:
    if not verified(request):
        return HttpResponse(status=401)
    body = json.loads(request.body)
    try:
        Settlement.get(f"order-{body['order']}").send_event(body["type"], body["data"], dedupe_key=body["event_id"])
    except WorkflowInstance.DoesNotExist:
        return HttpResponse(status=404)
    except InvalidTransition:                         # already finished: nothing to tell it
        return HttpResponse(status=200)
    return HttpResponse(status=204)
