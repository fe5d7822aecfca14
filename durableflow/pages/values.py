"""Stored values as HTML that people can read: nested ``<details>``, escaped, bounded (case SEC-07).

What comes in is plain JSON (``timeline.shown``). Nothing here trusts it: every text goes through ``format_html``.
"""

from __future__ import annotations

import re
from typing import Any

from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

ADDRESS = re.compile(r"https?://[!-~]+")
MAX_NODES = 400
MAX_DEPTH = 20
MAX_TEXT = 2_000
OPEN = SafeString(" open")
OPEN_NODES = 40
"""Containers stand open as long as fewer nodes than this were shown before them."""


def json_html(value: Any, full_url: str = "") -> SafeString:
    """``value`` (plain JSON) as nested lists. ``full_url``: where the whole of it is, linked when a part is left out."""
    viewer = _Viewer()
    body = viewer.value(value, 0)
    if not viewer.cut:
        return format_html('<div class="df-json">{}</div>', body)
    more = cut_note(full_url)
    return format_html('<div class="df-json">{}{}</div>', body, more)


def cut_note(full_url: str) -> SafeString:
    """The line below a value that is not shown whole."""
    if not full_url:
        return format_html('<p class="df-note">{}</p>', _("Not everything is shown."))
    return format_html(
        '<p class="df-note">{} <a href="{}">{}</a></p>',
        _("Not everything is shown."),
        full_url,
        _("Open the full JSON"),
    )


class _Viewer:
    """Renders one value within one budget of nodes."""

    def __init__(self) -> None:
        self.nodes = 0
        self.cut = False

    def value(self, value: Any, depth: int) -> SafeString:
        if isinstance(value, dict) and value:
            return self.entries(list(value.items()), depth)
        if isinstance(value, list) and value:
            return self.entries(list(enumerate(value)), depth)
        return self.scalar(value)

    def entries(self, entries: list[tuple[Any, Any]], depth: int) -> SafeString:
        items = []
        for position, (key, member) in enumerate(entries):
            if self.nodes >= MAX_NODES:
                self.cut = True
                left = len(entries) - position
                text = ngettext("%(n)d more entry", "%(n)d more entries", left) % {"n": left}
                items.append(format_html('<span class="df-note">… {}</span>', text))
                break
            self.nodes += 1
            items.append(self.entry(key, member, depth))
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}</li>", ((item,) for item in items)))

    def entry(self, key: Any, member: Any, depth: int) -> SafeString:
        name = format_html('<span class="df-key">{}</span>', self.text(str(key)))
        if not (isinstance(member, dict | list) and member):
            return format_html("{}: {}", name, self.scalar(member))
        if depth >= MAX_DEPTH:
            self.cut = True
            return format_html('{}: <span class="df-note">…</span>', name)
        size = len(member)
        note = (
            ngettext("%(n)d entry", "%(n)d entries", size)
            if isinstance(member, dict)
            else ngettext("list of %(n)d", "list of %(n)d", size)
        ) % {"n": size}
        is_open = self.nodes < OPEN_NODES
        body = self.value(member, depth + 1)
        return format_html(
            '<details{}><summary>{} <span class="df-note">{}</span></summary>{}</details>',
            OPEN if is_open else "",
            name,
            note,
            body,
        )

    def scalar(self, value: Any) -> SafeString:
        if value is None:
            return format_html('<span class="df-none">{}</span>', "null")
        if isinstance(value, bool):
            return format_html('<span class="df-bool">{}</span>', "true" if value else "false")
        if isinstance(value, int | float):
            return format_html('<span class="df-number">{}</span>', str(value))
        if value == "":
            return format_html('<span class="df-note">{}</span>', '""')
        if isinstance(value, str | Promise):
            if ADDRESS.fullmatch(str(value)) and len(str(value)) <= MAX_TEXT:
                # What a decision is about is often a page or a picture. The text is the address, so nobody is misled.
                return format_html('<a class="df-text" href="{0}" rel="noopener noreferrer">{0}</a>', str(value))
            return format_html('<span class="df-text">{}</span>', self.text(str(value)))
        return format_html('<span class="df-note">{}</span>', "{ }" if isinstance(value, dict) else "[ ]")

    def text(self, text: str) -> str:
        if len(text) <= MAX_TEXT:
            return text
        self.cut = True
        return f"{text[:MAX_TEXT]}…"
