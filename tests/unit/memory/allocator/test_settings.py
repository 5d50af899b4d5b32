"""Settings of the allocator, from PYTORCH_CUDA_ALLOC_CONF and from snapshots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.allocator import Allocator, Settings

from stepscope.errors import UsageError
from stepscope.memory.allocator.rounding import rounded_sizes
from stepscope.memory.allocator.settings import (
    MIB,
    AllocatorSettings,
    parse_settings,
    settings_of,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", AllocatorSettings()),
        ("default", AllocatorSettings()),
        ("expandable_segments:True", AllocatorSettings(expandable_segments=True)),
        (" max_split_size_mb : 256 ", AllocatorSettings(max_split_bytes=256 * MIB)),
        (
            "garbage_collection_threshold:0.8,max_non_split_rounding_mb:40",
            AllocatorSettings(garbage_collection_threshold=0.8, rounding_limit_bytes=40 * MIB),
        ),
        ("roundup_power2_divisions:4", AllocatorSettings(power2_divisions=(4,) * 16)),
        (
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:False",
            AllocatorSettings(power2_divisions=(1,) * 9 + (2, 8) + (8,) * 5),
        ),
        (
            "roundup_power2_divisions:[128:2,256:4]",
            AllocatorSettings(power2_divisions=(2,) * 8 + (4,) + (0,) * 7),
        ),
        ("backend:native,pinned_num_register_threads:8", AllocatorSettings()),
        ("large_segment_size_mb:64", AllocatorSettings(large_segment_bytes=64 * MIB)),
    ],
)
def test_configurations(text, expected):
    assert parse_settings(text) == expected


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("expandable_segments:true", "True or False"),
        ("max_split_size_mb:5", "at least 20"),
        ("max_split_size_mb:many", "invalid literal"),
        ("garbage_collection_threshold:1.5", "between 0 and 1"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:[3:4]", "power of two"),
        ("roundup_power2_divisions:[4:4", "no end"),
        ("backend:cudaMallocAsync", "native"),
        ("expandable_segment:True", "expandable_segments"),
        ("nonsense", "no option"),
    ],
)
def test_configurations_that_are_not_understood(text, match):
    with pytest.raises(UsageError, match=match):
        parse_settings(text)


@given(
    st.builds(
        AllocatorSettings,
        expandable_segments=st.booleans(),
        max_split_bytes=st.one_of(st.none(), st.integers(20, 10**5).map(lambda n: n * MIB)),
        rounding_limit_bytes=st.integers(20, 1000).map(lambda n: n * MIB),
        power2_divisions=st.one_of(
            st.just((0,) * 16), st.tuples(*[st.sampled_from([0, 1, 2, 4, 8, 16])] * 16)
        ),
        garbage_collection_threshold=st.sampled_from([0.0, 0.25, 0.8]),
    )
)
def test_what_is_written_is_what_is_read(settings):
    read = parse_settings(str(settings))
    if any(division > 1 for division in settings.power2_divisions):
        assert read == settings
    else:
        assert str(read) == str(settings)


def test_options_change_what_they_are_based_on():
    base = AllocatorSettings(expandable_segments=True)
    assert parse_settings("max_split_size_mb:30", base).expandable_segments
    assert not parse_settings("expandable_segments:False", base).expandable_segments


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, AllocatorSettings()),
        ({"max_split_size": -1}, AllocatorSettings()),
        ({"max_split_size": 2**64 - 1}, AllocatorSettings()),
        ({"max_split_size": 2**25}, AllocatorSettings(max_split_bytes=2**25)),
        ({"expandable_segments": True}, AllocatorSettings(expandable_segments=True)),
        (
            {"roundup_power2_divisions": {str(1 << n): 4 if n < 3 else 0 for n in range(16)}},
            AllocatorSettings(power2_divisions=(4, 4, 4) + (0,) * 13),
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:40,backend:cudaMallocAsync,new:1"},
            AllocatorSettings(large_segment_bytes=40 * MIB),
        ),
        (
            {"max_split_size": "x", "expandable_segments": 3, "roundup_power2_divisions": {"1": 3},
             "garbage_collection_threshold": 7, "PYTORCH_CUDA_ALLOC_CONF": None},
            AllocatorSettings(),
        ),
    ],
)  # fmt: skip
def test_what_snapshots_say(said, expected):
    assert settings_of(said) == expected


@given(st.lists(st.integers(0, 2**40), max_size=50), st.sampled_from([0, 1, 2, 4, 8, 16, 64]))
def test_rounding_is_that_of_the_plain_allocator(sizes, divisions):
    plain = Allocator(settings=Settings(divisions=divisions))
    found = rounded_sizes(np.array(sizes, np.int64), (divisions,) * 16)
    assert found.tolist() == [plain.rounded(size) for size in sizes]


def test_torchs_own_example_of_rounding():
    """1200 between 1024 and 2048 in four parts is 1280."""
    assert rounded_sizes(np.array([1200 * MIB]), (4,) * 16).tolist() == [1280 * MIB]
    assert rounded_sizes(np.array([1, 512, 513, 2**62]), (0,) * 16).tolist() == [
        512,
        512,
        1024,
        2**62,
    ]
