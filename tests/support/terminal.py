"""Runs a command at a terminal of its own and presses Ctrl-C there: a program, not a module.

Usage: terminal.py WORD COUNT COMMAND…; after COUNT lines that are WORD, Ctrl-C is pressed. Prints
what the command said, and last its exit code.
"""

from __future__ import annotations

import os
import pty
import sys


def main(word: str, count: int, command: list[str]) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.execv(command[0], command)
    said = b""
    is_pressed = False
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody is there any more
            break
        if not piece:
            break
        said += piece
        if not is_pressed and said.count(b"\n" + word.encode()) >= count:
            os.write(terminal, b"\x03")
            is_pressed = True
    _, status = os.waitpid(process, 0)
    sys.stdout.buffer.write(said.replace(b"\r\n", b"\n"))
    sys.stdout.buffer.write(b"\n%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
