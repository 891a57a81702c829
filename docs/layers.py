"""Draw the layers of the package in docs/images, for light and dark pages: python docs/layers.py."""

from pathlib import Path

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 900, 520
COLOURS = {
    "layers.svg": {"text": "#1b1f24", "note": "#4a5159", "line": "#8a929a", "box": "#f1f3f5", "door": "#dbe9f9"},
    "layers-dark.svg": {"text": "#e8eaed", "note": "#b6bcc3", "line": "#78818a", "box": "#23282e", "door": "#17395c"},
}
"""Colours of the drawing, by file."""
LEFT, RIGHT, SIDE = 20, 690, 720
"""Left and right edge of the layers, and left edge of the column of measurements [px]."""
BOXES = (
    # left, top, width, height, title, note, colour
    (LEFT, 20, WIDTH - 2 * LEFT, 50, "cli", "parses options, calls the package, prints", "box"),
    (LEFT, 90, RIGHT - LEFT, 50, "report", "words, tables, charts: text, Markdown, HTML, JSON", "box"),
    (LEFT, 160, RIGHT - LEFT, 50, "advice", "guideline and rules, as data", "box"),
    (LEFT, 230, RIGHT - LEFT, 50, "study", "largest, best, playout, sensitivity, grids, tables", "box"),
    (LEFT, 300, RIGHT - LEFT, 40, "models: predict(scenario, requested, method) → Answer", "", "door"),
    (LEFT, 350, 217, 70, "chain", "of 2008, of a kernel, of QUIC", "box"),
    (247, 350, 216, 70, "sim", "packet by packet, shared links", "box"),
    (473, 350, 217, 70, "your model", "a class of yours", "box"),
    (LEFT, 440, WIDTH - 2 * LEFT, 50, "scenario, delays, accuracy, ask", "what is asked, what is answered", "box"),
    (SIDE, 90, WIDTH - LEFT - SIDE, 55, "testbed", "the real kernel", "box"),
    (SIDE, 155, WIDTH - LEFT - SIDE, 55, "proxy", "real programs", "box"),
    (SIDE, 230, WIDTH - LEFT - SIDE, 90, "capture", "ping, ss, pcap", "box"),
    (SIDE, 330, WIDTH - LEFT - SIDE, 90, "quality", "calls, videos", "box"),
)
"""Parts of the package; each imports only parts below it."""


def drawing(colours: dict[str, str]) -> str:
    """Return the drawing as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'text-anchor="middle" role="img">',
        "<title>Layers of the package: each part imports only parts below it</title>",
    ]
    for left, top, width, height, title, note, colour in BOXES:
        middle, centre = left + width / 2, top + height / 2
        parts.append(
            f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" '
            f'fill="{colours[colour]}" stroke="{colours["line"]}"/>'
        )
        lower = centre - 4 if note else centre + 5
        style = f'font-size="16" font-weight="600" fill="{colours["text"]}"'
        parts.append(f'<text x="{middle:g}" y="{lower:g}" {style}>{title}</text>')
        if note:
            parts.append(
                f'<text x="{middle:g}" y="{centre + 15:g}" font-size="13" fill="{colours["note"]}">{note}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    for name, colours in COLOURS.items():
        (IMAGES / name).write_text(drawing(colours), encoding="utf-8")
