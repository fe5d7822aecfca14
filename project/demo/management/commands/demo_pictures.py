"""``manage.py demo_pictures``: draw the sample pictures of the example app anew."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from PIL import Image, ImageDraw

SAMPLES = Path(__file__).resolve().parents[2] / "sample"


def sunset() -> Image.Image:
    """Landscape: an orange sky with a yellow sun over a blue sea."""
    picture = Image.new("RGB", (480, 300), "#1d4f91")
    draw = ImageDraw.Draw(picture)
    for y in range(190):
        draw.line([(0, y), (480, y)], fill=(250, 110 + y // 3, 20 + y // 5))
    draw.ellipse([190, 110, 290, 210], fill="#ffe04d")
    draw.rectangle([0, 190, 480, 300], fill="#1d4f91")
    for row in range(5):
        y = 205 + row * 20
        draw.line([(200 - row * 8, y), (280 + row * 8, y)], fill="#ffc94a", width=3)
    return picture


def forest() -> Image.Image:
    """Portrait: dark green firs on a black ground under a night sky."""
    picture = Image.new("RGB", (300, 420), "#0a0f1e")
    draw = ImageDraw.Draw(picture)
    draw.ellipse([205, 35, 255, 85], fill="#f4f1de")
    for x, top in ((60, 150), (230, 170), (145, 90)):
        for layer in range(4):
            y, half = top + layer * 62, 45 + layer * 16
            draw.polygon([(x, y), (x - half, y + 100), (x + half, y + 100)], fill="#12522a")
    draw.rectangle([0, 390, 300, 420], fill="#0b0b0b")
    return picture


def flower() -> Image.Image:
    """Square: a pink flower on a white ground."""
    picture = Image.new("RGB", (320, 320), "#fdfdfb")
    draw = ImageDraw.Draw(picture)
    for petal in range(8):
        x, y = (160 + 80 * f(petal * math.pi / 4) for f in (math.cos, math.sin))
        draw.ellipse([x - 48, y - 48, x + 48, y + 48], fill="#f06aa8", outline="#d8508f", width=2)
    draw.ellipse([110, 110, 210, 210], fill="#f7d13d")
    return picture


class Command(BaseCommand):
    """Writes the pictures to ``project/demo/sample/``."""

    help = "Draw the sample pictures of the example app anew."

    def handle(self, *args: Any, **options: Any) -> None:
        """Overwrites what is there."""
        SAMPLES.mkdir(exist_ok=True)
        sunset().save(SAMPLES / "sunset.jpg", quality=85)
        forest().save(SAMPLES / "forest.png", optimize=True)
        flower().save(SAMPLES / "flower.png", optimize=True)
        self.stdout.write(f"Drew 3 pictures in {SAMPLES}")
