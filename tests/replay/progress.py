"""The line of progress on a terminal."""

import os
import pty
import re
import subprocess

from replay.common import *  # noqa: F401,F403


def with_terminal(path, *args, stdin=None):
    """Runs with standard error on a pseudo terminal; returns what appeared there."""
    master, slave = pty.openpty()
    with subprocess.Popen([REPLAY, "--limit", "10/m", *args, *([path] if path else [])], stdout=subprocess.DEVNULL, stderr=slave,
                          stdin=stdin or subprocess.DEVNULL) as p:
        os.close(slave)
        seen = b""
        while True:
            try:
                got = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not got:
                break
            seen += got
        assert p.wait() == 0
    os.close(master)
    return seen.decode()


def a_long_input_shows_a_progress_bar_on_a_terminal():
    path = file_of(SAMPLE * 5, "long.log")
    seen = with_terminal(path)
    shares = [int(x) for x in re.findall(r"\[[#.]{40}\] +(\d+) %", seen)]
    assert len(shares) > 5 and shares == sorted(shares) and shares[-1] > 80, seen[-400:]
    assert seen.endswith("\r\x1b[K"), "the bar is left standing"


def a_long_stream_shows_how_much_was_read():
    with subprocess.Popen(["cat", file_of(SAMPLE * 5, "long.log")], stdout=subprocess.PIPE) as cat:
        seen = with_terminal(None, stdin=cat.stdout)
    assert re.search(r"\d\.\d MB read, [\d,]+ keys", seen) and "%" not in seen, seen[-400:]


def nothing_is_shown_for_a_short_input_or_without_a_terminal():
    assert with_terminal(SAMPLE_FILE) == ""
    assert run("--limit", "10/m", file_of(SAMPLE * 5, "long.log"))[2] == ""
