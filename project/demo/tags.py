"""What can be said about a picture from its pixels. Pure functions on Pillow images: no database, no storage."""

from __future__ import annotations

import colorsys
from collections import Counter
from functools import lru_cache
from typing import TypedDict

from PIL import Image, ImageOps, ImageStat

SAMPLE = (64, 64)
"""Pictures are shrunk to this many pixels before their colours are counted."""

LARGEST = (1024, 1024)
"""Larger pictures are shrunk to fit before anything is computed, so that a huge one needs no huge memory."""

HUES = (
    (15, "red"),
    (45, "orange"),
    (70, "yellow"),
    (165, "green"),
    (195, "teal"),
    (255, "blue"),
    (290, "purple"),
    (345, "pink"),
    (360, "red"),
)
"""Upper end in degrees, and the name of the hues below it."""


class Colour(TypedDict):
    """A named colour and the share of the picture it covers, 0 to 1."""

    name: str
    share: float


class Tags(TypedDict):
    """All tags of one picture."""

    colours: list[Colour]
    brightness: str
    orientation: str


def tags_of(picture: Image.Image) -> Tags:
    """All tags of a picture, looked at the way a camera's orientation mark says."""
    upright = flat(picture)
    return {
        "colours": dominant_colours(upright),
        "brightness": brightness(upright),
        "orientation": orientation(*upright.size),
    }


def flat(picture: Image.Image) -> Image.Image:
    """A copy that is upright, in RGB, with white where it is transparent, and no larger than the tags need."""
    small = picture.copy()
    small.thumbnail(LARGEST)
    upright = ImageOps.exif_transpose(small).convert("RGBA")
    ground = Image.new("RGBA", upright.size, "white")
    return Image.alpha_composite(ground, upright).convert("RGB")


def dominant_colours(picture: Image.Image, limit: int = 3, least: float = 0.05) -> list[Colour]:
    """The colours that cover most of an RGB picture, largest first: at most ``limit``, each with at least ``least``."""
    sample = picture.resize(SAMPLE, Image.Resampling.BOX)
    shares: Counter[str] = Counter()
    for pixels, colour in sample.getcolors(SAMPLE[0] * SAMPLE[1]) or ():
        if isinstance(colour, tuple):
            shares[colour_name(*colour[:3])] += pixels
    total = shares.total()
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"name": name, "share": round(count / total, 2)} for name, count in ranked[:limit] if count / total >= least
    ]


@lru_cache(maxsize=4096)
def colour_name(red: int, green: int, blue: int) -> str:
    """The everyday name of a colour given in 0 to 255."""
    hue, lightness, saturation = colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)
    if lightness < 0.12:
        return "black"
    if lightness > 0.93:
        return "white"
    if saturation < 0.15:
        return "grey"
    degrees = hue * 360
    if 10 < degrees <= 45 and lightness < 0.35:
        return "brown"
    return next(name for end, name in HUES if degrees <= end)


def brightness(picture: Image.Image) -> str:
    """``dark``, ``medium`` or ``bright``: thirds of the mean luminance."""
    mean = ImageStat.Stat(picture.convert("L")).mean[0]
    return "dark" if mean < 85 else "medium" if mean < 170 else "bright"


def orientation(width: int, height: int) -> str:
    """``portrait``, ``landscape``, or ``square`` where the sides differ by at most 2 %."""
    if abs(width - height) <= 0.02 * max(width, height):
        return "square"
    return "landscape" if width > height else "portrait"


def thumbnail(picture: Image.Image, side: int = 240) -> Image.Image:
    """A copy that fits into a square of ``side`` pixels; never enlarged."""
    small = flat(picture)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small
