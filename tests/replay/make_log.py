"""The sample that make_log makes."""

import hashlib
import os
import subprocess
from collections import Counter

from replay.common import *  # noqa: F401,F403


def the_sample_is_the_same_on_every_machine():
    assert made_log() == SAMPLE == made_log(1) == made_log(1, 60)
    assert hashlib.sha256(SAMPLE).hexdigest() == "92e3b732a0914728dfc8d91c5202edefbff11e396b730b5abb5a2e1807f7cb8d"
    assert made_log(2) != SAMPLE and made_log(2, 7) == made_log(2, 7)


def the_sample_has_a_crowd_a_crawler_and_an_attacker():
    lines = SAMPLE.split(b"\n")
    assert 5000 < len(lines) < 60000
    asked = Counter(key for _, _, key, _ in clf_requests(SAMPLE))
    assert len(asked) > 500 and asked[b"192.0.2.66"] > 1000 and asked[b"203.0.113.200"] > 1000
    assert sum(b'"POST /login' in line for line in lines) > 3000
    s = summary("--limit", "10/m burst 20", SAMPLE_FILE)
    assert 0.01 < s["share_refused"] < 0.5 and s["keys_refused"] < s["keys"] / 20


def the_sample_is_slightly_out_of_order_and_slightly_broken():
    s = summary("--limit", "10/m burst 20", SAMPLE_FILE)
    assert 10 < s["out_of_order"] < s["requests"] / 10 and s["out_of_order_ns"] <= 5 * 10**9
    assert 1 <= s["bad_lines"] <= 10


def the_sample_refuses_wrong_arguments():
    for args in ["x"], ["1", "0"], ["1", "2", "3"], ["-1"], ["1", "99999999"], [""]:
        assert subprocess.run([MAKE_LOG, *args], capture_output=True).returncode == 2, args


def the_picture_in_the_readme_is_the_one_of_the_demo():
    path = os.path.join(FOLDER.name, "demo.svg")
    report("--limit", "10/m burst 20", "--svg", path, file_of(SAMPLE, "demo.log"))
    with open(path) as new, open(os.path.join(ROOT, "examples", "replay", "demo.svg")) as kept:
        assert new.read() == kept.read(), "make demo && cp build/demo.svg examples/replay/demo.svg"


def the_readme_shows_what_the_demo_prints():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    text = report("--limit", "10/m burst 20", file_of(SAMPLE, "demo.log"), env={"LC_ALL": "C.UTF-8"})
    for line in text.splitlines():
        if "memory:" not in line and "per second" not in line and FOLDER.name not in line:
            assert line in readme, line
