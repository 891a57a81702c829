"""The sets of captures of the repository are those of the manifest, and hold what their specifications plan."""

import hashlib

import pandas as pd

import manifest
from tcpdelay.capture.flow_capture import CaptureFile


def test_every_set_is_in_the_manifest_as_it_is():
    listed = pd.read_csv(manifest.MANIFEST).set_index("set")
    assert sorted(listed.index) == sorted(str(file.relative_to(manifest.HERE)) for file in manifest.sets())
    assert listed["captures"].sum() > 2000
    for name, row in listed.iterrows():
        file = manifest.HERE / name
        assert hashlib.sha256(file.read_bytes()).hexdigest() == row["sha256"], name
        assert sorted(CaptureFile(file).names) == sorted(manifest.planned(file)), name
