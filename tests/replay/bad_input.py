"""Broken lines and files."""

import os
import re
import resource

from replay.common import *  # noqa: F401,F403


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


def what_is_not_needed_may_be_missing():
    cut = COMBINED[:60]
    assert summary("--limit", "9/s", stdin=cut)["requests"] == 1
    assert failed("--limit", "9/s", "--key", "path", stdin=cut)["bad_lines"] == 1
    assert failed("--limit", "9/s", "--cost", "bytes", stdin=cut)["bad_lines"] == 1
    assert summary("--limit", "9/s", "--key", "path", stdin=COMBINED.replace("192.0.2.1", "-"))["requests"] == 1


def a_log_of_bad_lines_only_says_so():
    code, out, _ = run("--limit", "9/s", stdin="nonsense\n" * 7)
    assert code == 1 and out.startswith(b"NOTHING READ: no line could be read as a request with a key by address\n"), out
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
