"""Metadata of the wheel: a README that reads well without the rest of the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

CHECKOUT_ONLY = re.compile(r"<!-- checkout -->\n.*?<!-- /checkout -->\n\n?", re.DOTALL)
COMMENT = re.compile(r"<!-- /?\w+ -->\n")
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]+\)")


class CustomMetadataHook(MetadataHookInterface):
    """Add the README without the parts for a checkout, and without links to files of the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = RELATIVE_LINK.sub(r"\1", COMMENT.sub("", CHECKOUT_ONLY.sub("", text)))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
