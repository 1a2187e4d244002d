"""Files, streams, the order of requests, memory."""

import gzip
import subprocess

from replay.common import *  # noqa: F401,F403


def standard_input_is_read_for_a_dash_or_no_file():
    want = good("--decisions", "--limit", "10/m", SAMPLE_FILE)
    assert good("--decisions", "--limit", "10/m", "-", stdin=SAMPLE) == want
    assert good("--decisions", "--limit", "10/m", stdin=SAMPLE) == want


def lines_out_of_order_within_the_window_are_sorted():
    log = "".join(f"{t} a\n" for t in range(999, -1, -1))
    compare(plain_requests(log), ["1/3s burst 2"], stdin=log, *["--reorder", "1000"])
    assert summary("--limit", "1/s", "--reorder", "1000", stdin=log)["too_late"] == 0


def a_line_later_than_the_window_is_taken_at_the_time_reached():
    log = "10 a\n20 b\n30 c\n5 a\n"
    s = summary("--limit", "1/7s", "--reorder", "2", stdin=log)
    assert (s["too_late"], s["out_of_order"], s["out_of_order_ns"]) == (1, 1, 25 * 10**9), s
    # 20 was decided before 5 was read, so 5 is taken at 20
    assert decisions("--limit", "1/11s", "--reorder", "2", stdin=log) == [(1, 1, 0, 0), (2, 1, 0, 0), (4, 0, 0, 10**9), (3, 1, 0, 0)]
    assert "1 came too late for --reorder 2" in report("--limit", "1/s", "--reorder", "2", stdin=log)


def requests_of_the_same_time_stay_as_they_stood():
    log = "".join(f"{5 - i // 40} a {i % 7 + 1}\n" for i in range(200))
    compare(plain_requests(log), ["9/s burst 30"], stdin=log)


def several_files_are_merged_by_time():
    first, second = file_of("3 a\n5 a\n", "first"), file_of("1 a\n4 b\n5 a\n", "second")
    out = good("--decisions", "--limit", "1/w burst 2", first, second).decode().split("\n")
    assert [line.split()[:2] for line in out[:-1]] == [["2:1", "1"], ["1:1", "1"], ["2:2", "1"], ["1:2", "0"], ["2:3", "0"]], out


def memory_does_not_grow_with_the_length_of_the_log():
    lines = [f"{i} key{i % 100}\n" for i in range(200000)]
    short = summary("--limit", "1/s", "--reorder", "1000", stdin="".join(lines[:5000]))
    long = summary("--limit", "1/s", "--reorder", "1000", stdin="".join(lines))
    assert long["requests"] == 200000 and long["memory_bytes"] == short["memory_bytes"], (long["memory_bytes"], short["memory_bytes"])


def the_memory_used_is_what_keys_buckets_and_window_need():
    count = 131072
    log = "".join(f"1 key{i:06d}\n" for i in range(count))
    s = summary("--limit", "1/s", "--reorder", "1000", stdin=log)
    keys = s["memory_bytes"] - s["bucket_bytes"]
    assert count * (28 + 10 + 8) < keys < count * (32 + 10 + 16) + 2_000_000, keys / count
    assert count * 24 <= s["bucket_bytes"] < count * 24 * 2 + 100_000, s["bucket_bytes"]


def the_same_input_gives_the_same_output():
    assert good("--decisions", "--limit", "10/m", SAMPLE_FILE) == good("--decisions", "--limit", "10/m", SAMPLE_FILE)
    first, second = (summary("--limit", "10/m", "--table-keys", "50", SAMPLE_FILE) for _ in range(2))
    for name in "deciding_ns", "whole_ns", "decisions_per_second":
        del first[name], second[name]
    assert first == second


def exact_decisions_do_not_depend_on_the_seed():
    assert good("--decisions", "--limit", "10/m", SAMPLE_FILE) == good("--decisions", "--limit", "10/m", "--seed", "77", SAMPLE_FILE)


def pipes_may_be_slow_and_give_a_few_bytes_at_a_time():
    log = SAMPLE[:30000] + b"\0" * 100 + SAMPLE[30000:60000]
    want = good("--decisions", "--limit", "10/m", stdin=log)
    random = Random(SEED)
    with subprocess.Popen([REPLAY, "--decisions", "--limit", "10/m"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as p:
        at = 0
        while at < len(log):
            size = random.between(1, 300)
            p.stdin.write(log[at:at + size])
            at += size
        p.stdin.close()
        p.stdin = None
        assert p.communicate()[0] == want
    packed = gzip.compress(log)
    with subprocess.Popen([REPLAY, "--decisions", "--limit", "10/m"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as p:
        for i in range(len(packed)):
            p.stdin.write(packed[i:i + 1])
        p.stdin.close()
        p.stdin = None
        assert p.communicate()[0] == want
