from __future__ import annotations

from django.db import models


class Order(models.Model):
    checkout = models.OneToOneField("durableflow.WorkflowInstance", null=True, blank=True, on_delete=models.SET_NULL, related_name="order")
