"""The sets of captures of the repository are those of the manifest, and hold what their specifications plan."""

import hashlib

import pandas as pd
import pyarrow.parquet as pq

import manifest
from tcpdelay.capture.flow_capture import CaptureFile

WITH_SENDER_QUEUE = {
    "captures/heuristics.parquet": 4,
    "kernel-captures/bursts.parquet": 1,
    "kernel-captures/sources.parquet": 16,
    "kernel-captures/sparse.parquet": 1,
}
"""Captures with a queue in the sender's device that TCP has felt; validation/README.md gives the reason."""


def test_every_set_is_in_the_manifest_as_it_is():
    listed = pd.read_csv(manifest.MANIFEST).set_index("set")
    assert sorted(listed.index) == sorted(str(file.relative_to(manifest.HERE)) for file in manifest.sets())
    assert listed["captures"].sum() > 2000
    for name, row in listed.iterrows():
        file = manifest.HERE / name
        assert hashlib.sha256(file.read_bytes()).hexdigest() == row["sha256"], name
        assert sorted(CaptureFile(file).names) == sorted(manifest.planned(file)), name


def test_tcp_never_waits_for_a_queue_in_the_sender_but_where_a_reason_is_given():
    found = {}
    for file in manifest.sets():
        table = pq.read_table(file, columns=["name", "counters"]).to_pydict()
        rows = zip(table["name"], map(dict, table["counters"]), strict=True)
        if felt := {name for name, counters in rows if counters.get("TCPSpuriousRtxHostQueues", 0)}:
            found[str(file.relative_to(manifest.HERE))] = len(felt)
    assert found == WITH_SENDER_QUEUE
    reasons = (manifest.HERE / "README.md").read_text(encoding="utf-8")
    for name, count in WITH_SENDER_QUEUE.items():
        assert f"| `{name}` | {count} |" in reasons
