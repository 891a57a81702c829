"""Make the pictures of report and explorer in docs/images again: python docs/screenshots.py; needs chromium."""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tcpdelay import guideline
from tcpdelay.scenario.scenario import application

IMAGES = Path(__file__).parent / "images"
SIZES = {
    "report": {"desktop": (1120, 1500), "phone": (390, 1600)},
    "explorer": {"desktop": (1280, 1340), "phone": (390, 844)},
}
"""Width and height of each page [px]."""
NARROWEST_WINDOW = 500
"""Smallest width of a browser window [px]. The page of a phone is shown in a frame inside such a window."""
SCHEMES = {"": "1", "-dark": "0"}
"""Suffixes of the files, and the browser's numbers for light and dark."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=4000"),
)


def photograph(page: Path, image: Path, size: tuple[int, int], scheme: str) -> None:
    """Write a picture of a page in a browser window of the given size, in one colour scheme."""
    width, height = size
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder) / "frame.html"
        style = f"width:{width}px;height:{height}px;border:0;display:block"
        frame.write_text(f'<body style="margin:0"><iframe src="{page.as_uri()}" style="{style}"></iframe>')
        command = ["chromium", *FLAGS, f"--user-data-dir={folder}/profile", f"--screenshot={image}"]
        command += [f"--window-size={max(width, NARROWEST_WINDOW)},{height}"]
        command += [f"--blink-settings=preferredColorScheme={scheme}", frame.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    with Image.open(image) as shown:
        shown.crop((0, 0, width, height)).convert("P", palette=Image.Palette.ADAPTIVE).save(image, optimize=True)


def pages(folder: Path) -> dict[str, Path]:
    """Write a report and an explorer of telephony into a folder."""
    report, explorer = folder / "report.html", folder / "explorer.html"
    report.write_text(guideline(application=application("voip"), rtt=0.100, loss=0.02).to_html(), encoding="utf-8")
    command = [sys.executable, "-m", "tcpdelay", "explore", "--app", "voip", "-o", str(explorer)]
    subprocess.run(command, check=True)
    return {"report": report, "explorer": explorer}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, page in pages(Path(folder)).items():
            for device, size in SIZES[name].items():
                for suffix, scheme in SCHEMES.items():
                    photograph(page, IMAGES / f"{name}-{device}{suffix}.png", size, scheme)
