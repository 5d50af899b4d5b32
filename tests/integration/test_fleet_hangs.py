"""Flight recorder dumps that torch itself writes, of a job whose last rank does not come."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.support.ranks import torchrun

from stepscope.commands.main import cli

pytestmark = pytest.mark.slow

JOB = """
try:
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
except ImportError:
    print("no flight recorder", flush=True)
    sys.exit(0)
os.makedirs(output, exist_ok=True)
pair = distributed.new_group([0, 1])
for _ in range(3):
    distributed.all_reduce(torch.ones(10))
# gloo notices nothing: it adds up the bytes of one type as if they were of the other.
distributed.all_reduce(torch.ones(10, dtype=torch.int32 if rank == 1 else torch.float32))
if rank < 2:
    distributed.all_reduce(torch.ones(7), group=pair)
waiting = distributed.all_reduce(torch.ones(9), async_op=True) if rank != 2 else None
time.sleep(1)
for folder, write in (("pickles", _dump_fr_trace), ("json", _dump_fr_trace_json)):
    os.makedirs(os.path.join(output, folder), exist_ok=True)
    content = write()
    data = content if isinstance(content, bytes) else content.encode()
    with open(os.path.join(output, folder, f"comm_lib_trace_rank_{rank}"), "wb") as file:
        file.write(data)
open(os.path.join(output, f"written-{rank}"), "w").close()
if rank == 2:
    # It comes once all have written.
    while not all(os.path.exists(os.path.join(output, f"written-{one}")) for one in range(3)):
        time.sleep(0.05)
    distributed.all_reduce(torch.ones(9))
else:
    waiting.wait()
distributed.barrier()
"""


def test_the_rank_that_has_not_come_is_named_in_both_forms(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    output = tmp_path / "dumps"
    head = (
        'os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"\n'
    )
    done = torchrun(tmp_path, head + JOB, 3, output=output)
    assert done.returncode == 0, done.stderr[-2000:]
    if "no flight recorder" in done.stdout:
        pytest.skip("this torch has no flight recorder for gloo")
    for form in ("pickles", "json"):
        words = ["hangs", str(output / form), "--format", "json"]
        result = CliRunner().invoke(cli, words, catch_exceptions=False)
        found = json.loads(result.output)
        assert found["culprits"] == [2], (form, found["verdict"])
        assert found["hanging"][0]["operation"] == "all_reduce"
        assert found["hanging"][0]["input"] == "Float[9]"
        assert found["hanging"][0]["waiting"] == [0, 1]
        differ = [(one["call"], one["ranks"], one["sequence"]) for one in found["mismatched"]]
        assert differ == [
            ("all_reduce(Float[10])", [0, 2], 4),
            ("all_reduce(Int[10])", [1], 4),
        ]
        assert any("although its calls differ" in note for note in found["notes"])
        last = found["operations"][0]
        assert (last["input"], last["inside"], last["completed"]) == ("Float[9]", [0, 1], [])
    words = ["hangs", str(output / "pickles" / "*_[01]"), "--world-size", "3", "--format", "json"]
    found = json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).output)
    assert found["culprits"] == [2]
    assert "left no dump" in found["verdict"]
