"""The lines of charts can be seen on the light and on the dark page."""

import re
from importlib.resources import files

import pytest

_STATIC = files("spark_log.console") / "static"
_LIGHT, _DARK = (255, 255, 255), (19, 22.5, 30.5)
"""The backgrounds of Pico's two themes."""


def luminance(colour):
    """Relative luminance of a colour of sRGB, by WCAG 2.2."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in (part / 255 for part in colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", [_LIGHT, _DARK])
def test_lines_have_the_contrast_that_graphics_need(page):
    [colours] = re.findall(r"COLOURS = \[(.*)\]", (_STATIC / "charts.js").read_text())
    for text in re.findall(r"#(\w{6})", colours):
        low, high = sorted((luminance(bytes.fromhex(text)), luminance(page)))
        assert (high + 0.05) / (low + 0.05) >= 3, text
