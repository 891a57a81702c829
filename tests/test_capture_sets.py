"""The sets of captures of the repository are those of the manifest, and hold what their specifications plan."""

import hashlib

import pandas as pd
import pyarrow.parquet as pq

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


def test_tcp_never_waits_for_a_queue_in_the_sender():
    felt = []
    for file in manifest.sets():
        table = pq.read_table(file, columns=["name", "counters"]).to_pydict()
        rows = zip(table["name"], map(dict, table["counters"]), strict=True)
        felt += [name for name, counters in rows if counters.get("TCPSpuriousRtxHostQueues", 0)]
    assert not felt
