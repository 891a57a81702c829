"""What the repository releases: the wheel, the citation, the workflow, sets of captures, and scripts that start."""

import hashlib
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.policy import default
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import manifest
from tcpdelay.capture.flow_capture import CaptureFile

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def build(source, target, folder):
    """Return a distribution of a source tree."""
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel):
    """Return the metadata of the wheel."""
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    return message_from_bytes(wheel.read(name), policy=default)


def test_the_wheel_holds_the_package_alone(wheel):
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in files} == {"tcpdelay"}
    assert {name for name in files if name.endswith(".py")} == {
        str(file.relative_to(ROOT)) for file in (ROOT / "tcpdelay").rglob("*.py")
    }
    assert {"tcpdelay/py.typed", "tcpdelay/__init__.pyi"} <= files


def test_the_readme_of_the_wheel_needs_no_other_file(metadata):
    readme = metadata.get_payload()
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert links
    assert all(link.startswith("https://") for link in links)
    assert "pip install tcpdelay" in readme
    for word in ("<!--", "make ", "examples/", "docs/", ".md"):
        assert word not in readme, word


def test_a_plain_installation_reads_packet_captures(metadata):
    required = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
    assert any(each.startswith("dpkt") for each in required)
    pinned = (ROOT / "locks" / "runtime.lock").read_text()
    for each in required:
        assert re.search(rf"^{re.match('[a-z0-9-]+', each)[0]}==", pinned, re.MULTILINE), each


def test_the_citation_is_that_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation


def test_the_changelog_describes_this_version_on_a_page():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## [{PROJECT['version']}]" in changelog
    assert len(changelog.splitlines()) <= 120
    sections = changelog.split("\n## ")[1:]
    assert all(
        len(set(titles)) == len(titles) for text in sections if (titles := re.findall(r"^### (.+)$", text, re.M))
    )


def test_the_recipe_of_conda_needs_what_the_package_needs():
    recipe = (ROOT / "packaging" / "conda-forge" / "meta.yaml").read_text()
    assert f'version = "{PROJECT["version"]}"' in recipe
    assert f'python_min = "{PROJECT["requires-python"].removeprefix(">=")}"' in recipe
    needed = {each.replace("prometheus-client", "prometheus_client") for each in PROJECT["dependencies"]}
    needed = {re.sub(r"^matplotlib(?=[<>=])", "matplotlib-base", each) for each in needed}
    run = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    listed = {line.strip().removeprefix("- ").replace(" ", "") for line in run.splitlines()}
    assert listed == needed | {"python>={{python_min}}"}


def test_the_documentation_is_built_before_it_is_hosted():
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text())["jobs"]
    assert jobs["host"]["needs"] == "build"
    (built,) = [step for step in jobs["build"]["steps"] if "upload-pages-artifact" in step.get("uses", "")]
    assert built["with"]["path"] == "docs/_build/html"


def test_a_release_is_tested_on_three_systems():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    jobs = workflow["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == (["build", "kernels"], "test")
    assert len(jobs["test"]["strategy"]["matrix"]["python"]) == 3
    # Each Python that the project is tested with has a wheel with compiled kernels.
    assert {*jobs["test"]["strategy"]["matrix"]["python"]} <= {*jobs["kernels"]["strategy"]["matrix"]["python"]}


def test_the_source_distribution_is_small_and_builds_the_same_wheel(tmp_path):
    packed = build(ROOT, "sdist", tmp_path / "sdist")
    assert packed.stat().st_size < 2_000_000
    with tarfile.open(packed) as opened:
        opened.extractall(tmp_path, filter="data")
    unpacked = tmp_path / packed.name.removesuffix(".tar.gz")
    with zipfile.ZipFile(build(unpacked, "wheel", tmp_path / "wheel")) as wheel:
        files = {name for name in wheel.namelist() if not name.partition("/")[0].endswith(".dist-info")}
        metadata = next(name for name in wheel.namelist() if name.endswith("METADATA"))
        assert "pip install tcpdelay" in wheel.read(metadata).decode()
    kept = subprocess.run(["git", "ls-files", "tcpdelay"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert files >= set(kept.stdout.split()) > set()
    assert (unpacked / "examples" / "ping.txt").exists()
    shown = [sys.executable, "-m", "tcpdelay", "paths"]
    found = subprocess.run(shown, cwd=unpacked, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."})
    assert (found.returncode, "lte" in found.stdout) == (0, True), found.stderr


# The sets of captures are those of the manifest, and hold what their specifications plan


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


# The scripts of benchmarks/ and validation/ run nowhere else in the tests: that they still start at all

SCRIPTS = sorted(
    file
    for folder in ("benchmarks", "validation")
    for file in (ROOT / folder).rglob("*.py")
    if file.parent.name != "scoring"
)
WITH_COMMAND_LINE = [script for script in SCRIPTS if "ArgumentParser(" in script.read_text()]
OF_EXTRA_BENCH = ("pytest_benchmark", "quantecon", "stormpy")


@pytest.fixture
def started(monkeypatch):
    """Return what runs a script as Python would, and forgets what the script has imported from beside it."""
    before = set(sys.modules)

    def start(script, name, *arguments):
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        monkeypatch.setattr(sys, "path", [str(script.parent), str(ROOT), *sys.path])
        try:
            runpy.run_path(str(script), run_name=name)
        except ModuleNotFoundError as error:
            if error.name not in OF_EXTRA_BENCH:
                raise
            pytest.skip(f"{error.name} of the extra bench is not installed")

    yield start
    for module in set(sys.modules) - before:
        file = getattr(sys.modules[module], "__file__", None) or ""
        if Path(file) in SCRIPTS:
            del sys.modules[module]


# The others show below that they start.
@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if s not in WITH_COMMAND_LINE], ids=lambda script: str(script.relative_to(ROOT))
)
def test_all_that_a_script_imports_is_there(started, script):
    started(script, "imported")


@pytest.mark.parametrize("script", WITH_COMMAND_LINE, ids=lambda script: str(script.relative_to(ROOT)))
def test_a_script_explains_its_command_line(started, script, capsys):
    with pytest.raises(SystemExit) as end:
        started(script, "__main__", "--help")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_arguments_are_read_by_a_parser_that_explains_them():
    assert len(WITH_COMMAND_LINE) > 5
    # The ends of programs in a guest are started by other scripts.
    scripts = [script for script in SCRIPTS if script.parent.name != "program_ends"]
    by_hand = [script for script in scripts if "sys.argv[1" in script.read_text()]
    # What it runs in another process reads the files that it is given there.
    assert sorted(script.name for script in by_hand) == ["large.py", "public.py"]
