"""Broken lines and files."""

import os
import re
import resource
import signal

from replay.common import *  # noqa: F401,F403
from replay.samples import OTHERS, WEB


def bad_lines_are_counted_and_the_first_is_named():
    log = COMBINED + "\n# a comment\nnonsense\n" + COMBINED + "192.0.2.1 - - [17/May/2015:10:05:03\n"
    s = summary("--limit", "9/s", stdin=log)
    assert (s["requests"], s["bad_lines"], s["first_bad_line"]) == (2, 2, 4), s
    assert re.search(r"bad lines +2 +the first is line 4: it fits none of the forms.*\n +> nonsense\n", report("--limit", "9/s", stdin=log))
    assert re.search(r"bad lines: 2   the first is line 4: it fits none of the forms.*\n +> nonsense\n", run("--limit", "9/s", "--decisions", stdin=log)[2])
    files = file_of(COMBINED, "fine"), file_of("1 a\nnonsense\n", "faulty")
    text = report("--limit", "9/s", *files)
    assert f"bad lines                 1   the first is line 2 of {files[1]}: it fits none" in text, text
    assert f"  {files[0]}: 1 as combined\n" in text and f"  {files[1]}: 1 as TIME KEY, 1 bad (line 2: it fits none" in text, text


def each_kind_of_bad_line_is_bad():
    for line in ("17", "x y z", "1.5.2 a", "1. a", ".5 a", "-1 a", "1 a b", "1 a -1", "1 a 1.5", "99999999999999999999 a", "1,5 a",
                 "Dec 32 00:00:00 a b", "Dez 10 00:00:00 a b", "Dec 10 24:00:00 a b", "Dec 10 00:00 a b", "Dec 10 00:00:00",
                 "[17/May/2015:10:05:03 +0000]", "a - - [31/Apr/2015:10:05:03 +0000] \"", "a - - [17/May/2015:10:61:03 +0000] \"",
                 "1 2 3 4", "a - - [17/May/2015:10:05:03 0000] \"GET /\"", "a - - [17/May/2015:10:05:03 +0061] \"", "a - - [17/May/1969:10:05:03 +0000] \"",
                 "a - - [17/May/2600:10:05:03 +0000] \"", "a - - [17/May/2015:10:05:03 +0000]", "a - - [17/May/2015:10:05:03] \"", "\0\0\0", "\xff\xff"):
        s = failed("--limit", "9/s", stdin=(line + "\n").encode("latin-1"))
        assert (s["requests"], s["bad_lines"], s["first_bad_line"]) == (0, 1, 1), (line, s)


def a_number_that_is_no_time_is_not_called_one():
    for line in '10.0.0.1 - - "GET / HTTP/1.1" 200', "03/Mar/2026:14:00:01 10.0.0.1 GET /", "1772546400,10.0.0.1":
        reason = failed("--limit", "9/s", stdin=line + "\n")["inputs"][0]["reason"]
        assert reason.startswith("it begins with a number: if that is a time"), (line, reason)


def what_is_not_needed_may_be_missing():
    cut = COMBINED[:60]
    assert summary("--limit", "9/s", stdin=cut)["requests"] == 1
    assert failed("--limit", "9/s", "--key", "path", stdin=cut)["bad_lines"] == 1
    assert failed("--limit", "9/s", "--cost", "bytes", stdin=cut)["bad_lines"] == 1
    assert summary("--limit", "9/s", "--key", "path", stdin=COMBINED.replace("192.0.2.1", "-"))["requests"] == 1


def a_log_of_bad_lines_only_says_so():
    code, out, _ = run("--limit", "9/s", stdin="nonsense\n" * 7)
    assert code == 1 and out.startswith(b"NOTHING READ: no line could be read as a request with a key by address; "), out
    assert re.search(rb"bad lines +7 +the first is line 1: ", out)
    for more in ["--json"], ["--decisions"], ["--as", "nginx"]:
        code, _, err = run("--limit", "9/s", *more, stdin="nonsense\n")
        assert code == 1 and "no line could be read" in err, (more, err)


def nulls_are_survived():
    nul = COMBINED.encode()
    s = summary("--limit", "1/w", stdin=b"\0" * 200000 + nul + nul.replace(b"192.0.2.1", b"1\x002") * 2)
    assert (s["requests"], s["keys"], s["bad_lines"]) == (1, 1, 2), s
    s = summary("--limit", "1/w", stdin=b"1 a\0b\n" * 2)
    assert s["most_refused"][0]["key"] == "a\\x00b"
    assert "NULs" in failed("--limit", "1/w", stdin=b"\0" * 99 + b"\n")["inputs"][0]["reason"]


def lines_that_are_not_utf8_are_survived():
    s = summary("--limit", "1/w", "--key", "path", stdin=COMBINED.encode().replace(b"/a", b"/\xff\xc3\xa9\xc0\xaf\xed\xa0\x80") * 2)
    assert s["most_refused"][0]["key"] == "/\\xff\u00e9\\xc0\\xaf\\xed\\xa0\\x80", s["most_refused"]


def starve():
    resource.setrlimit(resource.RLIMIT_AS, (30_000_000, 30_000_000))


def a_line_of_megabytes_is_survived_in_starve():
    long = COMBINED.encode().replace(b"/a?b=c", b"/" + b"a" * 50_000_000)
    address_space = starve
    try:
        good("--help", preexec_fn=starve)
    except AssertionError:  # built with a sanitizer, which needs more
        address_space = None
    s = summary("--limit", "1/w", stdin=long + COMBINED.encode(), preexec_fn=address_space)
    assert (s["requests"], s["bad_lines"]) == (2, 0), s
    s = summary("--limit", "1/w", "--key", "path", stdin=long + COMBINED.encode(), preexec_fn=address_space)
    assert (s["requests"], s["bad_lines"], s["first_bad_line"]) == (1, 1, 1), s


def a_key_at_the_end_of_what_is_looked_at_is_whole_or_bad():
    for length in 65533, 65534, 65535, 65536, 70000, 200000:
        code, out, _ = run("--limit", "1/w", "--json", stdin="1 " + "k" * length + "\n")
        assert json.loads(out)["requests"] == (length <= 65534) == (code == 0), (length, code)


def an_empty_input_is_no_error():
    assert "requests                  0\n" in report("--limit", "1/s")
    assert summary("--limit", "1/s")["bins"] == [] and decisions("--limit", "1/s") == []
    assert summary("--suggest")["suggested"] is None


def a_last_line_without_an_end_counts():
    assert summary("--limit", "1/s", stdin="1 a\n2 b")["requests"] == 2


def random_bytes_are_survived():
    random = Random(SEED)
    for _ in range(150):
        content = bytearray(b"".join(random.choice([COMBINED.encode(), b"1.5 a 3\n", b"Dec 10 06:55:48 198.18.0.1 x\n"]) for _ in range(20)))
        for _ in range(random.below(60)):
            at = random.below(len(content))
            content[at:at + random.below(4)] = bytes(random.below(256) for _ in range(random.below(4)))
        s = summary("--limit", "1/s", "--cost", "bytes", "--key", random.choice(["ip", "path", "ip+path", "2"]), stdin=bytes(content))
        lines = [line for line in bytes(content).split(b"\n") if line.strip(b" \t\r") and line[:1] != b"#"]
        assert s["requests"] + s["bad_lines"] <= len(lines)


def lines_of_a_mebibyte_are_survived_in_each_form():
    million = "x" * (1 << 20)
    for sample in WEB + OTHERS:
        last = sample.lines[-1]
        log = "\n".join(sample.lines[:-1] + [last + " " + million, million + last, last[:len(last) // 2] + million, "[" * (1 << 20), '{"a":' * 9999, last]) + "\n"
        code, out, _ = run("--limit", "1/100w", "--json", stdin=log)
        s = json.loads(out)
        keys = {t["key"] for t in s["most_refused"]}
        assert code == 0 and s["requests"] >= 1 and s["keys"] == 1 and keys <= {sample.key}, (sample, keys, s["inputs"])


def what_lies_behind_the_65536th_byte_is_named_so():
    s = failed("--limit", "9/s", "--key", "path", stdin=COMBINED.replace("/a?b=c", "/" + "a" * 70000))
    assert "longer than 65,536 bytes" in s["inputs"][0]["reason"], s["inputs"]


def nulls_in_any_place_are_survived_in_each_form():
    for sample in WEB + OTHERS:
        last = sample.lines[-1].encode()
        lines = [last[:i] + b"\0" + last[i:] for i in range(len(last))] + [last[:i] + b"\0" + last[i + 1:] for i in range(1, len(last))]
        log = "\n".join(sample.lines[:-1]).encode() + b"\n" + b"\n".join(lines) + b"\n"
        code, out, _ = run("--limit", "1/100w", "--json", stdin=log)
        s = json.loads(out)
        if not sample.whole:  # there any text may be a key
            assert {t["key"] for t in s["most_refused"]} <= {sample.key} and s["keys"] <= 1, (sample, s["most_refused"], s["inputs"])
        assert s["requests"] + s["bad_lines"] + s["left_out"] >= len(lines) - 4, (sample, s)


def times_out_of_range_are_bad_in_each_form():
    for sample, times in ((WEB[0], ("32/Oct/2024:13:55:36 +0000", "10/Okt/2024:13:55:36 +0000", "10/Oct/2024:24:55:36 +0000", "10/Oct/2024:13:60:36 +0000", "10/Oct/2024:13:55:61 +0000", "10/Oct/2024:13:55:36 +1500",
                                    "10/Oct/1969:13:55:36 +0000", "10/Oct/2600:13:55:36 +0000", "29/Feb/2023:13:55:36 +0000", "99999999999/Oct/2024:13:55:36 +0000")),):
        for bad in times:
            assert failed("--limit", "9/s", stdin=sample.lines[0].replace("10/Oct/2024:13:55:36 +0000", bad) + "\n")["bad_lines"] == 1, bad
    for line in ('{"ts":1e99,"client_ip":"192.0.2.9"}', '{"ts":-5,"client_ip":"192.0.2.9"}', '{"ts":"2024-13-01T00:00:00Z","client_ip":"192.0.2.9"}', '{"ts":99999999999999999999,"client_ip":"192.0.2.9"}',
                 "2024-13-01T00:00:00Z alice", "2024-02-30 00:00:00 alice", "99999999999 alice", "Feb 30 13:55:36 192.0.2.9 failed-password", "Feb 29 25:55:36 192.0.2.9 failed-password",
                 "192.0.2.9:33317 [31/Feb/2024:13:55:36.655] http-in static/srv1 10/0/30/69/109 401 2326 - - ---- 1/1/1/1/0 0/0 {} {} \"GET / HTTP/1.1\"",
                 "#Fields: date time c-ip\n2024-99-10 13:55:36 192.0.2.9", "#Fields: date time c-ip\n2024-10-10 13:55 192.0.2.9", "#Fields: time c-ip\n13:55:36 192.0.2.9"):
        assert failed("--limit", "9/s", stdin=line + "\n")["bad_lines"] == 1, line


def the_same_broken_input_gives_the_same_answer_from_a_file_and_a_pipe():
    random = Random(SEED)
    for _ in range(20):
        content = bytearray("\n".join(line for sample in WEB + OTHERS for line in sample.lines).encode())
        for _ in range(random.below(200)):
            at = random.below(len(content))
            content[at:at + random.below(4)] = bytes(random.below(256) for _ in range(random.below(4)))
        path = file_of(bytes(content), "broken.log")
        from_file, from_pipe = run("--decisions", "--limit", "1/m", path), run("--decisions", "--limit", "1/m", stdin=bytes(content))
        assert from_file[:2] == from_pipe[:2], (from_file[2], from_pipe[2])


def limit_files(size=5000):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def a_picture_for_which_there_is_no_room_leaves_the_old_one():
    for option in "--svg", "--html":
        path = file_of("old", "picture")
        before = set(os.listdir(FOLDER.name))
        code, _, err = run("--limit", "10/m burst 20", option, path, SAMPLE_FILE, preexec_fn=limit_files)
        assert code == 1 and path in err and "too large" in err, (code, err)
        assert open(path).read() == "old" and set(os.listdir(FOLDER.name)) == before
        assert run("--limit", "10/m burst 20", option, "/dev/full", SAMPLE_FILE)[0] == 1


def a_picture_may_go_to_a_pipe_or_device():
    code, out, _ = run("--limit", "1/s", "--decisions", "--svg", "/dev/stderr", stdin="1 a\n")
    assert code == 0 and out == b"1 1 0 0\n"
