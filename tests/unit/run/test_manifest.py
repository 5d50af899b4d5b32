"""Manifests: there and back, tolerant of what is new, strict with what is wrong."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UnreadableInputError
from stepscope.run.manifest import (
    ArtifactRecord,
    JobRecord,
    ProblemRecord,
    RankManifest,
    WindowRecord,
    read_rank,
    read_record,
    write_record,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
wholes = st.integers(0, 2**62)
artifacts = st.builds(ArtifactRecord, texts, texts, wholes, texts, texts)
windows = st.builds(
    WindowRecord,
    wholes,
    texts,
    st.none() | wholes,
    st.none() | wholes,
    wholes,
    texts,
    wholes,
    st.lists(artifacts, max_size=3).map(tuple),
)
problems = st.builds(ProblemRecord, texts, texts, wholes, wholes)
manifests = st.builds(
    RankManifest,
    rank=wholes,
    host=texts,
    state=texts,
    steps=wholes,
    windows=st.lists(windows, max_size=3).map(tuple),
    problems=st.lists(problems, max_size=3).map(tuple),
)


@given(manifests)
def test_a_manifest_survives_the_round_trip(tmp_path_factory, manifest):
    path = tmp_path_factory.getbasetemp() / "manifest.json"
    write_record(path, manifest)
    assert read_rank(path) == manifest


def test_a_job_survives_the_round_trip(tmp_path):
    job = JobRecord("name", 3, ("python", "t.py"), options={"wait": 3, "nested": [1, {"a": None}]})
    write_record(tmp_path / "run.json", job)
    assert read_record(tmp_path / "run.json", JobRecord) == job


def test_keys_of_a_newer_writer_are_left_out(tmp_path):
    path = tmp_path / "manifest.json"
    data = dataclasses.asdict(RankManifest(3, windows=(WindowRecord(0, "complete"),)))
    data["colour"] = "blue"
    data["windows"][0]["mood"] = 3
    path.write_bytes(orjson.dumps(data))
    assert read_rank(path) == RankManifest(3, windows=(WindowRecord(0, "complete"),))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "not a stepscope-rank"),
        (b'{"format":"stepscope-run","version":1}', "not a stepscope-rank"),
        (b'{"format":"stepscope-rank","version":99,"rank":0}', "upgrade"),
        (b'{"format":"stepscope-rank","version":"1","rank":0}', "version"),
        (b'{"format":"stepscope-rank","version":1}', "rank"),
        (b'{"format":"stepscope-rank","version":1,"rank":"0"}', "'0'"),
        (b'{"format":"stepscope-rank","version":1,"rank":0,"windows":{}}', "list"),
        (b'{"format":"stepscope-rank","version":1,"rank":0,"windows":[3]}', "object"),
        (b'{"format":"stepscope-rank","version":1,"rank":true}', "True"),
    ],
)
def test_what_is_no_manifest_names_the_file_and_the_reason(tmp_path, content, word):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=word) as caught:
        read_rank(path)
    assert "manifest.json" in str(caught.value)


def test_a_missing_manifest_says_so(tmp_path):
    with pytest.raises(UnreadableInputError, match="cannot be read"):
        read_rank(tmp_path / "manifest.json")
