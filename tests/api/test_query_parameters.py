"""Query parameters: steps by their status; what means nothing is refused (design 10)."""

from __future__ import annotations

import pytest

from tests.api.conftest import ORDERS

pytestmark = pytest.mark.django_db
URL = f"{ORDERS}order-1/"


def names(response) -> list[str]:
    assert response.status_code == 200, response.json()
    return [step["name"] for step in response.json()["results"]]


def test_steps_are_filtered_by_status(client_of, order, step_of) -> None:
    row = order()
    for name, status in (("a", "complete"), ("b", "failed"), ("c", "pending"), ("d", "failed")):
        step_of(row, name, status=status)
    client = client_of("viewer")
    assert names(client.get(f"{URL}steps/?status=failed")) == ["b", "d"]
    assert names(client.get(f"{URL}steps/?status=failed,pending")) == ["b", "c", "d"]
    assert names(client.get(f"{URL}steps/?status=failed&status=complete")) == ["a", "b", "d"]
    first = client.get(f"{URL}steps/?status=failed&page_size=1")
    assert names(first) == ["b"] and names(client.get(first.json()["next"])) == ["d"]
    assert client.get(f"{URL}steps/?status=broken").json()["code"] == "invalid"


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/api/workflows/", "format"),
        (ORDERS, "created_after, created_before, cursor, format, page_size, search, status"),
        (URL, "format, wait"),
        (f"{URL}steps/", "cursor, format, page_size, status"),
        (f"{URL}history/", "after, format, limit, types, wait"),
        ("/api/pending-events/", "cursor, format, mine, page_size, status, workflow"),
    ],
)
def test_what_means_nothing_is_refused(client_of, order, path, known) -> None:
    """A misspelt filter that is ignored gives everything, and is taken for the few."""
    order()
    client = client_of("viewer")
    response = client.get(f"{path}?statsu=failed&format=json")
    text = f"Unknown query parameter. Known ones: {known}."
    assert (response.status_code, response.json()) == (
        400,
        {"code": "invalid", "detail": f"statsu: {text}", "fields": {"statsu": [text]}},
    )
    assert client.get(f"{path}?format=json").status_code == 200
    assert client_of("anonymous").get(f"{path}?statsu=failed").status_code in (401, 403), "who asks comes first"


def test_what_means_nothing_of_schedules_is_refused(client_of) -> None:
    known = "cursor, enabled, format, page_size, workflow"
    response = client_of("planner").get("/api/schedules/?enabeld=true")
    assert response.status_code == 400 and response.json()["detail"].endswith(f"Known ones: {known}.")


def test_probes_and_verbs_take_whatever_proxies_add(client_of, order) -> None:
    order()
    assert client_of("anonymous").get("/api/health/?t=1").status_code in (200, 503)
    assert client_of("viewer").get("/api/schema/?t=1").status_code == 200


def test_the_schema_knows_the_filter_of_steps(client_of) -> None:
    response = client_of("stranger").get("/api/schema/", headers={"Accept": "application/vnd.oai.openapi+json"})
    told = response.json()["paths"]["/api/workflows/{workflow}/instances/{instance_id}/steps/"]["get"]
    assert {"status", "cursor", "page_size"} <= {item["name"] for item in told["parameters"]}
    assert "400" in told["responses"]


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00%2B23:59"])
@pytest.mark.parametrize("name", ["created_after", "created_before"])
def test_moments_that_lead_out_of_the_calendar_are_refused(client_of, order, name, moment) -> None:
    """In UTC there are none such; in a bulk request the same."""
    order()
    response = client_of("viewer").get(f"{ORDERS}?{name}={moment}")
    assert response.status_code == 400 and list(response.json()["fields"]) == [name]
    body = {"action": "pause", "filter": {name: moment.replace("%2B", "+")}}
    response = client_of("operator").post(f"{ORDERS}bulk/", body)
    assert response.status_code == 400 and name in response.json()["detail"]
    assert client_of("viewer").get(f"{ORDERS}?{name}=9999-12-31T23:59:59Z").status_code == 200


@pytest.mark.parametrize("size", ["x", "0", "-1", "1.5", "%D9%A1", "9" * 5000])
@pytest.mark.parametrize("path", [ORDERS, f"{URL}steps/", "/api/pending-events/", "/api/schedules/"])
def test_a_page_size_that_is_none_is_refused(client_of, order, path, size) -> None:
    """It would give the default, and be taken for all. What is more than a page can have gives a full one."""
    order()
    response = client_of("superuser").get(f"{path}?page_size={size}")
    assert (response.status_code, list(response.json()["fields"])) == (400, ["page_size"])
    for fine in ("", "1", "100000"):
        assert client_of("superuser").get(f"{path}?page_size={fine}").status_code == 200


@pytest.mark.parametrize("version", ["%00", "a%0D%0Ab", '"', "%E2%82%AC"])
def test_a_version_that_is_none_does_not_get_into_a_header(client_of, version) -> None:
    response = client_of("viewer").get(f"/api/schema/?version={version}")
    assert response.status_code == 200 and "(" not in response["Content-Disposition"]
    assert "(2.0)" in client_of("viewer").get("/api/schema/?version=2.0")["Content-Disposition"]


@pytest.mark.parametrize("number", ["x", "0", "-1", "1.5", "%D9%A1", "9" * 19, "9" * 5000, "%00", "latest"])
@pytest.mark.parametrize("path", ["/api/schedules/%s/", "/api/pending-events/%s/", f"{URL}steps/%s/output/"])
def test_what_is_no_number_of_a_row_is_a_404_of_ours(client_of, order, path, number) -> None:
    """JSON as every error here, not the project's page."""
    order()
    response = client_of("superuser").get(path % number)
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert client_of("anonymous").get(path % number).status_code in (401, 403)


def test_allow_tells_of_what_is_answered(client_of, order, wait_of) -> None:
    """Nothing answers OPTIONS: whoever asks by it learns from ``Allow`` what there is."""
    wait_of(order())
    for path in ("/api/workflows/", ORDERS, URL, f"{URL}pause/", "/api/schedules/", "/api/health/"):
        response = client_of("superuser").options(path)
        assert response.status_code == 405 and "OPTIONS" not in response["Allow"], path
    assert {"GET", "POST"} <= set(client_of("superuser").put(ORDERS)["Allow"].split(", "))
