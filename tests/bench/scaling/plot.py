"""Line charts as SVG, with nothing but the standard library: both axes logarithmic, one line for each series."""

import html
import math

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 290, 36, 44
COLOURS = ["#1f6fb4", "#d1652b", "#3a8f3a", "#8b5fb0", "#b8922d", "#555555", "#c04070"]


def decades(values):
    """From the power of ten below the least to the one above the largest."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def number(power):
    value = 10**power
    return f"{value:g}" if power < 5 else f"10^{power}"


def chart(title, across, up, series):
    """`series`: name → pairs of numbers above 0. Answers the text of an SVG file."""
    points = [point for line in series.values() for point in line]
    (left, right), (low, high) = decades([x for x, _ in points]), decades([y for _, y in points])
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    x = lambda value: LEFT + (math.log10(value) - left) / (right - left) * width
    y = lambda value: TOP + (high - math.log10(value)) / (high - low) * height
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>',
    ]
    for power in range(left, right + 1):
        at = x(10**power)
        text.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{TOP + height}" stroke="#ddd"/>')
        text.append(f'<text x="{at:.1f}" y="{TOP + height + 16}" text-anchor="middle">{number(power)}</text>')
    for power in range(low, high + 1):
        at = y(10**power)
        text.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{LEFT + width}" y2="{at:.1f}" stroke="#ddd"/>')
        text.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(power)}</text>')
    text.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(across)}</text>')
    middle = TOP + height / 2
    turned = f'x="14" y="{middle}" transform="rotate(-90 14 {middle})" text-anchor="middle"'
    text.append(f"<text {turned}>{html.escape(up)}</text>")
    for at, (name, line) in enumerate(series.items()):
        colour = COLOURS[at % len(COLOURS)]
        places = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        text.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>')
        text += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5" fill="{colour}"/>' for a, b in line]
        row, edge = TOP + 10 + 18 * at, WIDTH - RIGHT
        text.append(f'<path d="M{edge + 10} {row}h18" stroke="{colour}" stroke-width="2"/>')
        text.append(f'<text x="{edge + 34}" y="{row + 4}">{html.escape(name)}</text>')
    return "\n".join(text + ["</svg>", ""])
