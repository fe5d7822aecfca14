"""README and docs/: links lead somewhere, and tables name what the code has."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from durableflow.authoring.options import KEYS
from durableflow.core.conf import Settings
from durableflow.core.statuses import TRANSITIONS, Status
from durableflow.management.verbs import VERBS
from durableflow.models.permissions import DELETE, OPERATE, OVERRIDE

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"])
LIFECYCLE = (ROOT / "docs" / "lifecycle.md").read_text()


def prose(text: str) -> str:
    """The text without blocks of code, in which brackets are no links and # is no heading."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The names that a forge gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_samples_can_be_read_and_import_what_is_there(page: Path) -> None:
    """An ellipsis stands for what a sample leaves out."""
    for sample in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(sample.replace("…", "..."))):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "durableflow":
                module = import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"(docs/{page.name}" not in readme] == []


def test_every_setting_is_told() -> None:
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(field.name for field in fields(Settings))


def test_every_key_of_meta_is_told() -> None:
    text = (ROOT / "docs" / "workflows.md").read_text()
    sentence = text.partition("Keys of `Meta`:")[2].partition("They merge")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == KEYS


def test_every_verb_of_the_command_line_is_told() -> None:
    table = (ROOT / "docs" / "command-line.md").read_text().partition("## The verbs")[2].partition("### ")[0]
    told = {
        word for cell in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for word in re.findall(r"`([a-z-]+)", cell)
    }
    assert {verb.name for verb in VERBS} == told


def rows(heading: str, columns: int) -> list[list[str]]:
    """The cells of the table of docs/lifecycle.md whose header begins with ``heading``."""
    table = LIFECYCLE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    assert found and all(len(row) == columns for row in found)
    return found


def test_every_status_is_told_with_its_label() -> None:
    assert [(row[0].strip("`"), row[1]) for row in rows("status | in the admin", 3)] == list(Status.choices)


def possible_in(cell: str) -> set[str]:
    """The statuses that a cell of the table of verbs names."""
    listed, _, but = cell.partition("all but ")
    if but or listed == "all":
        return {str(status) for status in Status} - set(re.findall(r"\w+", but))
    return set(re.findall(r"\w+", listed))


@pytest.mark.parametrize("verb", ["pause", "resume", "retry", "restart", "complete_step", "terminate"])
def test_the_table_of_verbs_is_the_transition_table(verb: str) -> None:
    """The first row of each verb says in which statuses it is possible."""
    [row, *_] = [row for row in rows("verb | possible in", 6) if row[0].startswith(f"`{verb}(")]
    assert possible_in(row[1]) == set(TRANSITIONS[verb])
    named = set(re.findall(r"\w+", row[2])) | (set(TRANSITIONS[verb]) if "the same" in row[2] else set())
    assert set(TRANSITIONS[verb].values()) <= named


def test_the_rights_of_the_verbs_are_told() -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in rows("verb | permission", 5)}
    assert told == dict.fromkeys(("pause", "resume", "retry", "restart", "terminate"), OPERATE) | {
        "complete_step": OVERRIDE,
        "delete": DELETE,
    }
