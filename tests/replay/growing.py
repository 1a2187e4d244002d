"""gzip, files that grow or vanish, --follow."""

import gzip
import os
import shutil
import signal
import subprocess
import time

from replay.common import *  # noqa: F401,F403


def packed_files_are_read_like_others():
    want = good("--decisions", "--limit", "10/m burst 20", SAMPLE_FILE)
    path = file_of(gzip.compress(SAMPLE), "sample.log.gz")
    assert good("--decisions", "--limit", "10/m burst 20", path) == want
    assert good("--decisions", "--limit", "10/m burst 20", "-", stdin=gzip.compress(SAMPLE)) == want
    half = SAMPLE.index(b"\n", len(SAMPLE) // 2) + 1  # several members, and what tar leaves behind
    members = gzip.compress(SAMPLE[:half]) + gzip.compress(b"") + gzip.compress(SAMPLE[half:])
    assert good("--decisions", "--limit", "10/m burst 20", stdin=members) == want
    assert good("--decisions", "--limit", "10/m burst 20", stdin=members + b"\0" * 512) == want


def packed_files_that_are_cut_off_or_damaged_are_named():
    packed = gzip.compress(SAMPLE)
    for content, least in ((packed[:len(packed) // 2], 1000), (packed[:20], 0), (packed[:5000] + b"\xff" * 50 + packed[5050:], 0)):
        path = file_of(content, "cut.log.gz")
        other = file_of("1772546407 a\n", "fine")
        code, out, err = run("--limit", "9/s", "--json", path, other)
        s = json.loads(out)
        assert code == 1 and path in err and "gzip" in err, (code, err)
        assert s["requests"] >= least + 1 and "gzip" in s["inputs"][0]["fault"] and s["inputs"][1]["requests"] == 1, s["inputs"]


def without_zlib_the_program_gzip_unpacks():
    if not shutil.which(os.environ.get("CC", "cc")):
        raise Skip("no C compiler")
    program = os.path.join(FOLDER.name, "without-zlib")
    sources = [os.path.join(ROOT, "examples", "replay", name) for name in os.listdir(os.path.join(ROOT, "examples", "replay")) if name.endswith(".c")]
    subprocess.run([os.environ.get("CC", "cc"), "-std=c99", "-O1", "-I", ROOT, *sources, "-o", program], check=True)
    want = good("--decisions", "--limit", "10/m burst 20", SAMPLE_FILE)
    path = file_of(gzip.compress(SAMPLE), "sample.log.gz")
    for args, stdin in (([path], b""), ([], gzip.compress(SAMPLE)), ([SAMPLE_FILE], b"")):
        done = subprocess.run([program, "--decisions", "--limit", "10/m burst 20", *args], input=stdin, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, want), (args, done.stderr)
        assert b"gzip" not in done.stderr.replace(b".log.gz", b""), done.stderr
    done = subprocess.run([program, "--limit", "9/s", file_of(gzip.compress(SAMPLE)[:30000], "cut.log.gz")], capture_output=True, timeout=60)
    assert done.returncode == 1 and b"damaged or cut off" in done.stderr, done.stderr
    done = subprocess.run([program, "--limit", "9/s", path], capture_output=True, timeout=60, env={"PATH": "/nowhere"})
    assert done.returncode == 1 and b"gzip is not installed" in done.stderr, done.stderr


def what_is_packed_otherwise_is_named_with_what_to_do():
    for magic, text in ((b"\x28\xb5\x2f\xfd", "zstdcat"), (b"\xfd7zXZ\0", "xzcat"), (b"BZh91AY", "bzcat"), (b"PK\3\4", "unzip -p")):
        code, _, err = run("--limit", "1/s", stdin=magic + b"x" * 100)
        assert code == 1 and text in err, (magic, err)
        assert failed("--limit", "1/s", stdin=magic + b"x" * 100)["bad_lines"] == 0


def rotated_and_packed_files_are_one_history():
    old, new = "".join(f"Dec 31 23:59:{i:02d} a x\n" for i in range(10, 20)), "".join(f"Jan  1 00:01:{i:02d} a x\n" for i in range(10, 20))
    paths = [file_of(new, "auth.log"), file_of(gzip.compress(old.encode()), "auth.log.1.gz")]
    s = summary("--limit", "10/d burst 10", *paths)
    assert (s["allowed"], s["refused"]) == (10, 10), s


def a_file_that_vanishes_while_it_is_read_is_read_to_its_end():
    fifo = os.path.join(FOLDER.name, "slow")  # read first: it keeps replay waiting
    os.mkfifo(fifo)
    path = file_of(SAMPLE, "vanishing.log")
    with subprocess.Popen([REPLAY, "--json", "--limit", "9/s", path, fifo], stdout=subprocess.PIPE) as p:
        with open(fifo, "w") as f:
            os.unlink(path)
            f.write("1772546407 a\n")
        out = p.communicate(timeout=60)[0]
    assert p.returncode == 0 and json.loads(out)["requests"] == 19013


def a_file_may_grow_while_it_is_read():
    path = file_of(SAMPLE, "growing.log")
    with subprocess.Popen([REPLAY, "--json", "--limit", "9/s", path], stdout=subprocess.PIPE) as p:
        for _ in range(50):
            with open(path, "ab") as f:
                f.write(b"2000000000 a\n2000000001 a\n")
        out = p.communicate(timeout=60)[0]
    s = json.loads(out)
    assert p.returncode == 0 and 19012 <= s["requests"] <= 19112 and s["bad_lines"] <= 6, s["requests"]


# ---- --follow -----------------------------------------------------------------------------------------------------


def following(*args):
    return subprocess.Popen([REPLAY, "--follow=1", "--limit", "1/h burst 2", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def lines_until(p, count):
    return [p.stdout.readline().decode() for _ in range(count)]


def a_pipe_is_followed_with_reports_and_a_last_one():
    with following("-") as p:
        p.stdin.write(b"1000 a\n1001 a\n1002 a\n1003 b\n1100 c\n")
        p.stdin.flush()
        assert "4 requests, 1 refused (25.00 %); 3 keys, 0 bad lines; most refused a 1" in lines_until(p, 1)[0]
        p.stdin.write(b"1101 a\nnonsense\n")
        out, err = p.communicate(timeout=30)
    assert p.returncode == 0 and b"1/h burst 2 per address" in out and b"requests                  6" in out and err == b"", (out, err)


def a_file_is_followed_over_its_rotation_until_an_interrupt():
    path = file_of("1000 a\n", "followed.log")
    with following(path) as p:
        with open(path, "a") as f:
            f.write("1001 a\n1002 ")  # a line that is only begun
        time.sleep(0.5)
        with open(path, "a") as f:
            f.write("a\n")
        lines_until(p, 1)
        os.rename(path, path + ".1")
        file_of("1003 a\n1004 b\n", "followed.log")
        time.sleep(1.2)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=30)
    assert p.returncode == 0 and b"requests                  5" in out and b"refused                   2" in out and b"bad lines                 0" in out, out


def packed_files_cannot_be_followed():
    code, _, err = run("--follow", "--limit", "1/s", file_of(gzip.compress(b"1 a\n"), "x.gz"))
    assert code == 1 and "can't be followed" in err, err
