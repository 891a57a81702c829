"""The wheel: a README that reads well without the rest of the repository, and the kernels if they are compiled."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

CHECKOUT_ONLY = re.compile(r"<!-- checkout -->\n.*?<!-- /checkout -->\n\n?", re.DOTALL)
RELEASE_ONLY = re.compile(r"<!-- release\n(.*?)-->\n", re.DOTALL)
COMMENT = re.compile(r"<!-- /?\w+ -->\n")
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]+\)")
KERNELS = "tcpdelay/compiled_kernels"


class CustomMetadataHook(MetadataHookInterface):
    """Add the README with the parts for a release in place of those for a checkout, and without links to files."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = RELATIVE_LINK.sub(r"\1", COMMENT.sub("", RELEASE_ONLY.sub(r"\1", CHECKOUT_ONLY.sub("", text))))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class CustomBuildHook(BuildHookInterface):
    """Add the kernels that `make kernels` has compiled: such a wheel is for one Python on one system."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the kernels, and the tag of a wheel with them; without kernels of these sources, the wheel is for all."""
        folder = Path(self.root, KERNELS)
        if self.target_name != "wheel" or version == "editable" or not (folder / "stamp.json").exists():
            return
        stamp = json.loads((folder / "stamp.json").read_text(encoding="utf-8"))
        sources = runpy.run_path(str(Path(self.root, "tcpdelay/compiling/source_digest.py")))
        if stamp["sources"] != sources["source_digest"]().hex():
            self.app.display_warning(f"{KERNELS} is of other sources, and left out: run make kernels")
            return
        build_data["pure_python"] = False
        build_data["tag"] = stamp["wheel"]
        build_data["force_include"][str(folder)] = KERNELS
