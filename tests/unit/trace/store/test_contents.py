"""Checksums of stored files are CRC-32, whatever their size, and notice a single changed byte."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from stepscope.trace.store.contents import SMALL_BYTES, contents_of, is_intact


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES, SMALL_BYTES + 1, 3 * 1024 * 1024 + 17])
def test_checksums_tell_of_a_changed_byte(tmp_path: Path, size: int) -> None:
    content = bytearray(range(251)) * (size // 251 + 1)
    del content[size:]
    file = tmp_path / "part"
    file.write_bytes(content)
    contents = contents_of(tmp_path, ["part"])
    assert contents["part"]["crc32"] == zlib.crc32(content)
    assert is_intact(tmp_path, contents, ["part"])
    os.utime(file, (5, 5))
    assert is_intact(tmp_path, contents, ["part"])
    if size:
        content[size // 2] ^= 1
        file.write_bytes(content)
        os.utime(file, (5, 5))
        assert not is_intact(tmp_path, contents, ["part"])
