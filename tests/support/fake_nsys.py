"""A stand-in for nsys: it runs the command, notes its arguments, and writes and exports reports.

Like the real one it ends when it is told to, and leaves what it started behind.
"""

from __future__ import annotations

import json
import sqlite3
import stat
import sys
from contextlib import closing

PROGRAM = """#!{python}
import json, os, shutil, subprocess, sys
here = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA Nsight Systems version {version}.1-1")
elif words[0] == "export":
    shutil.copy(os.path.join(here, "export.sqlite"), words[words.index("--output") + 1])
elif words[0] == "profile":
    with open(os.path.join(here, "arguments.json"), "w") as file:
        json.dump(words, file)
    if {code}:
        print("nsys: this machine is not supported", file=sys.stderr)
        sys.exit({code})
    start = next(i for i, word in enumerate(words[1:], 1) if not word.startswith("-"))
    done = subprocess.run(words[start:])
    output = next(w.partition("=")[2] for w in words if w.startswith("--output="))
    for ending in {endings}:
        with open(output + ending, "wb") as file:
            file.write(b"NVIDIA Tegra Profiler Report 2025@3@1")
    sys.exit(0)
"""
PROCESS = 0x1000000 * 42
THREAD = PROCESS + 43
EXPORT = f"""
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'volta_sgemm_128x64_nn');
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
  globalTid INTEGER);
INSERT INTO NVTX_EVENTS VALUES
  (0, 1000, 59, 'ProfilerStep#2, op_id = 1', NULL, {THREAD}),
  (10, 300, 59, 'aten::mm, op_id = 2', NULL, {THREAD}),
  (1000, 2000, 59, 'ProfilerStep#3, op_id = 3', NULL, {THREAD}),
  (1010, 1300, 59, 'aten::mm, op_id = 4', NULL, {THREAD});
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (30, 40, {THREAD}, 9, 1),
  (1030, 1040, {THREAD}, 10, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, shortName INTEGER, gridX INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 800, 0, 7, 9, {PROCESS}, 2, 4),
  (1100, 1800, 0, 7, 10, {PROCESS}, 2, 4);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100', 85, 132);
"""


def make_nsys(folder, *, version="2025.3", code=0, endings=(".nsys-rep",)):
    """Put an nsys into a folder, which belongs on PATH."""
    folder.mkdir(exist_ok=True)
    text = PROGRAM.format(
        python=sys.executable, version=version, code=code, endings=json.dumps(list(endings))
    )
    program = folder / "nsys"
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    export = folder / "export.sqlite"
    export.unlink(missing_ok=True)
    with closing(sqlite3.connect(export)) as connection:
        connection.executescript(EXPORT)
    return program


def arguments_of(folder):
    """What nsys was started with last."""
    return json.loads((folder / "arguments.json").read_text())
