"""Numbers as people write them."""

import math

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOTHING = "–"


def power(exponent: int) -> str:
    return "10" + str(exponent).translate(SUPERSCRIPTS)


def small(value: float) -> str:
    """Write a gap, an objective or a metric: three digits, with a power of ten in place of many zeros."""
    if not math.isfinite(value):
        return NOTHING
    if value < 0:
        return "−" + small(-value)
    if value == 0 or 1e-2 <= value < 1e6:
        return f"{value:,.0f}" if value == 0 or value >= 99.95 else f"{value:#.3g}"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits} × {power(int(exponent))}"


def count(value: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f}" if value >= 1000 or value == round(value) else f"{value:.1f}"


def size(value: float) -> str:
    """Write a number of bytes."""
    if not math.isfinite(value):
        return NOTHING
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= 0.9995 * unit:
            return f"{value / unit:.{max(0, 2 - int(math.log10(value / unit * 1.0005)))}f} {name}"
    return f"{value:,.0f} B"


def seconds(value: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    if value < 100:
        return f"{value:.2g} s"
    return f"{value / 60:.3g} min" if value < 6000 else f"{value / 3600:.3g} h"


def several(number: int, what: str) -> str:
    """Write how many there are of something: "1 run", "20 runs"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
