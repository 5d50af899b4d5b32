"""What a report's page is drawn from."""

from __future__ import annotations

import json
import re


def data_of(text):
    """The data of a page, as its script reads it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def blocks_of(data, kind):
    return [one for section in data["sections"] for one in section["blocks"] if one["is"] == kind]
