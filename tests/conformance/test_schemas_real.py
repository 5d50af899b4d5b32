"""What `--format json` prints about real inputs is as its schema says."""

from __future__ import annotations

import pytest
from tests.support.json_schemas import json_schemas, problems_of
from tests.support.real_traces import EACH, path_of

OTHERS = (
    "amd_resnet_ddp_4rank",
    "nsys/h100_2gpu_1s.sqlite",
    "nsys/mfu_2gpu_before.sqlite",
    "snapshots/mosaic_output.pickle",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EACH, *OTHERS])
def test_every_output_about_it_is_as_its_schema_says(name, cache_of_the_module):
    path = path_of(name)
    printed = 0
    for command in json_schemas.commands(str(path)):
        for document in json_schemas.outputs(command):
            assert problems_of(document) == [], command
            printed += 1
    assert printed > 2
