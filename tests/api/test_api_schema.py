"""The OpenAPI schema."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command
from django.urls import include, path

from durableflow.api import urls

pytestmark = pytest.mark.django_db
API = "/nested/api/"
urlpatterns = [path("nested/", include([path("api/", include("durableflow.api.urls"))]))]


def test_no_warnings(client) -> None:
    """Of the whole project, as a project would check it."""
    text = io.StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json", stdout=text)
    paths = json.loads(text.getvalue())["paths"]
    ours = tuple(f"/api/{name}/" for name in ("workflows", "schedules", "pending-events", "health"))
    assert len([name for name in paths if name.startswith(ours)]) == len(urls.routes)


def schema_of(client, url: str) -> dict:
    response = client.get(url, headers={"Accept": "application/vnd.oai.openapi+json"})
    assert response.status_code == 200
    return json.loads(response.content)


def test_the_schema_has_the_projects_paths(client_of) -> None:
    """Ours alone, and every operation says what it answers."""
    schema = schema_of(client_of("stranger"), "/api/schema/")
    assert len(schema["paths"]) == len(urls.routes)
    start = schema["paths"]["/api/workflows/{workflow}/instances/"]["post"]
    assert set(start["responses"]) == {"200", "201", "400", "401", "403", "404", "409", "413", "422"}
    assert "Idempotency-Key" in [parameter["name"] for parameter in start["parameters"]]
    listed = schema["paths"]["/api/workflows/{workflow}/instances/"]["get"]["parameters"]
    sizes = [item["schema"] for item in listed if item["name"] == "page_size"]
    assert sizes == [{"type": "integer", "minimum": 1, "maximum": 500}]
    assert {"status", "created_after", "created_before", "search", "cursor", "page_size"} <= {
        item["name"] for item in listed
    }


@pytest.mark.urls("tests.api.test_api_schema")
def test_the_api_can_be_mounted_anywhere(client_of, order) -> None:
    """Links and schema follow the mount point."""
    order()
    client = client_of("viewer")
    assert f"{API}workflows/{{workflow}}/" in schema_of(client, f"{API}schema/")["paths"]
    row = client.get(f"{API}workflows/api-order/instances/").json()["results"][0]
    assert row["url"] == f"http://testserver{API}workflows/api-order/instances/order-1/"


def test_the_projects_rest_settings_do_not_matter(client_of, order, settings) -> None:
    """Renderers, parsers, pages, filters, versions and errors are set on our views (design 10)."""
    order()
    settings.REST_FRAMEWORK = {
        **settings.REST_FRAMEWORK,
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.BrowsableAPIRenderer"],
        "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.FormParser"],
        "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
        "DEFAULT_PAGINATION_CLASS": None,
        "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.NamespaceVersioning",
        "EXCEPTION_HANDLER": "tests.api.test_api_schema.never",
        "STRICT_JSON": False,
    }
    assert client_of("anonymous").get("/api/workflows/").status_code == 403
    response = client_of("viewer").get("/api/workflows/api-order/instances/", headers={"Accept": "text/html, */*"})
    assert (response["Content-Type"], len(response.json()["results"])) == ("application/json", 1)
    assert client_of("viewer").get("/api/workflows/x/").json()["code"] == "not_found"


def never(error: Exception, context: object) -> None:
    raise AssertionError("the project's exception handler was called")


def test_verbs_and_batches_say_what_they_take(client_of) -> None:
    """Bodies, their known values, and answers; the addresses of batches say nothing of instances with their names."""
    schema = schema_of(client_of("stranger"), "/api/schema/")
    paths, parts = schema["paths"], schema["components"]["schemas"]
    one = "/api/workflows/{workflow}/instances/{instance_id}/"
    assert set(paths[one]) == {"get", "delete"} and set(paths[one]["delete"]["responses"]) >= {"204", "404", "409"}
    assert [item["name"] for item in paths[one]["delete"]["parameters"]] == ["instance_id", "reason", "workflow"]
    for name in ("batch", "bulk", "batch/delete"):
        assert set(paths[f"/api/workflows/{{workflow}}/instances/{name}/"]) == {"post"}
    assert set(parts["RestartBody"]["properties"]) == {"reason", "from_step", "run_number"}
    assert set(parts["StepNamed"]["properties"]) == {"name", "count", "kind", "scope"}
    (kinds,) = parts["StepNamed"]["properties"]["kind"]["anyOf"]
    assert {"do", "sleep", "wait_for_event"} <= set(kinds["enum"])
    assert parts["BatchRequest"]["properties"]["instances"]["maxItems"] == 100
    (actions,) = parts["BulkBody"]["properties"]["action"]["anyOf"]
    assert set(actions["enum"]) == {"retry", "pause", "resume", "terminate", "restart"}
    assert set(paths["/api/schedules/{id}/"]) == {"get", "patch", "delete"}


def test_numbers_of_rows_are_numbers(client_of) -> None:
    """In the schema, whatever the routes take."""
    paths = schema_of(client_of("stranger"), "/api/schema/")["paths"]
    found = [
        (name, item["schema"]["type"])
        for name, methods in paths.items()
        for method in methods.values()
        for item in method.get("parameters", ())
        if item["in"] == "path" and item["name"] in ("id", "step_id")
    ]
    assert len(found) == 10 and {kind for _, kind in found} == {"integer"}


def test_bodies_take_no_other_keys(client_of) -> None:
    """As the API itself: an unknown key is refused. A cursor that is none is a 404 of each list."""
    schema = schema_of(client_of("stranger"), "/api/schema/")
    parts = schema["components"]["schemas"]
    bodies = ("StartBody", "BatchRequest", "BulkBody", "DecideBody", "RestartBody", "StepNamed", "ScheduleBody")
    assert [name for name in bodies if parts[name].get("additionalProperties") is not False] == []
    assert "additionalProperties" not in parts["InstanceAnswer"]
    assert "404" in schema["paths"]["/api/pending-events/"]["get"]["responses"]
