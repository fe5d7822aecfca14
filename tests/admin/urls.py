"""URLs of these tests: admin, login, and the decision page in its own namespace, as a project without the REST API has them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from durableflow.models import PendingEvent, WorkflowInstance, WorkflowSchedule

other_site = admin.AdminSite(name="operations")
for model in (WorkflowInstance, PendingEvent, WorkflowSchedule):
    other_site.register(model, type(admin.site.get_model_admin(model)))

urlpatterns = [
    path("admin/", admin.site.urls),
    path("operations/", other_site.urls),
    path("accounts/", include("django.contrib.auth.urls")),
    path("durableflow/", include("durableflow.pages.urls")),
]
