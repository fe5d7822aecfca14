"""URLs for projects without the REST API: ``path("durableflow/", include("durableflow.pages.urls"))``.

``durableflow.api.urls`` has the same page under its own name; ``PendingEvent.decision_url`` finds either.
"""

from __future__ import annotations

from django.urls import path

from durableflow.pages.views import DecideLinkView

app_name = "durableflow"

urlpatterns = [path("decide/<str:token>/", DecideLinkView.as_view(), name="decide")]
