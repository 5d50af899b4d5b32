"""Makes reports from memray's files in a separate process: the files come from any training.

A single process makes all of them, because memray takes a second to import. Its arguments are a
list of memray command lines and the file for their output.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

_WRONG_USAGE = 2


def make(command_lines: list[list[str]]) -> list[tuple[int, str, str]]:
    """Run memray's command lines one after the other.

    Returns:
        The exit code, standard output and standard error of each.
    """
    from memray.commands import main

    results = []
    for words in command_lines:
        output, complaints = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaints):
            try:
                code = main(words)
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int) else 1
            except Exception as error:  # noqa: BLE001 - one report less is no reason for none
                code = 1
                complaints.write(f"{type(error).__name__}: {error}\n")
        results.append((code, output.getvalue(), complaints.getvalue()))
        if code == _WRONG_USAGE and "--no-web" in words:  # an older version without this switch
            results[-1] = make([[word for word in words if word != "--no-web"]])[0]
    return results


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(make(json.loads(sys.argv[1]))), encoding="utf-8")
