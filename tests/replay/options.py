"""Options, errors, exit codes."""

import os
import re
import subprocess

from replay.common import *  # noqa: F401,F403


def wrong_options_are_refused_with_a_clear_text():
    for args, text in (
        ([], "a limit is missing"),
        (["--limit"], "--limit: a value is missing"),
        (["--limit", "10/x"], "position 4"),
        (["--limit", "10/m burst"], "position 11"),
        (["--limit", ""], "position 1"),
        (["--limit", "0/s"], "zero or too large"),
        (["--limit", "1/s burst 99999999999999999999"], "position 11"),
        (["--limit", "10/x\x1b[31m"], "\\x1b[31m"),
        (["--nonsense"], 'unknown option "--nonsense"'),
        (["-x"], 'unknown option "-x"'),
        (["--limit", "1/s", "--key", "nothing"], "--key"),
        (["--limit", "1/s", "--key", "0"], "--key"),
        (["--limit", "1/s", "--ip-prefix", "129"], "0 to 128"),
        (["--limit", "1/s", "--ip-prefix=6x"], "--ip-prefix"),
        (["--limit", "1/s", "--ipv4-prefix", "33"], "0 to 32"),
        (["--limit", "1/s", "--cost", "money"], "--cost"),
        (["--limit", "1/s", "--table-keys", "0"], "--table-keys"),
        (["--limit", "1/s", "--table-keys", "-1"], "--table-keys"),
        (["--limit", "1/s", "--full", "up"], "--full"),
        (["--limit", "1/s", "--reorder", "0"], "--reorder"),
        (["--limit", "1/s", "--year", "1969"], "--year"),
        (["--limit", "1/s", "--seed", "18446744073709551616"], "--seed"),
        (["--suggest=200%"], "--suggest"),
        (["--suggest=lots"], "--suggest"),
        (["--limit", "1/s", "--json", "--decisions"], "standard output"),
        (["--limit", "1/s", "-", "-"], "only once"),
        (["--limit", "1/s"] * 17, "more than 16"),
        (["--compare", "1/s"] * 17, "more than 16"),
        (["--compare", "10/m, 5/x"], "position 9"),
        (["--compare", "10/m,"], "position 6"),
        (["--limit", "1/s", "--host", "third"], "--host"),
        (["--limit", "1/s", "--as", "apache"], "--as"),
        (["--limit", "1/s", "--status", "40"], "--status"),
        (["--limit", "1/s", "--status", "x"], "--status"),
        (["--limit", "1/s", "--key", "-0"], "--key"),
        (["--limit", "1/s", "--json", "--as", "nginx"], "standard output"),
        (["--limit", "1/s", "--key", "path", "--json-key", "x"], "--json-key"),
        (["--suggest", "--follow"], "--follow"),
        (["--limit", "1/s", "--follow=0"], "--follow"),
        (["--limit", "1/s", "--follow", "--json"], "--follow"),
    ):
        code, out, err = run(*args)
        assert (code, out) == (2, b"") and text in err and err.startswith("replay: "), (args, code, err)


def the_fault_in_a_limit_is_pointed_at():
    _, _, err = run("--limit", "10/m burts 20")
    lines = err.split("\n")
    assert lines[1][lines[2].index("^"):] in ("ts 20", "burts 20"), err


def an_unreadable_file_is_named_and_the_others_are_read():
    for path, text in (os.path.join(FOLDER.name, "none"), "No such file"), (FOLDER.name, "directory"):
        code, out, err = run("--limit", "10/m burst 20", "--json", path, SAMPLE_FILE)
        assert code == 1 and path in err and text in err, (code, err)
        s = json.loads(out)  # the others go on
        assert s["requests"] == 19012 and text in s["inputs"][0]["fault"] and s["inputs"][1]["requests"] == 19012
        text_report = run("--limit", "1/s", path, SAMPLE_FILE)[1].decode()
        assert f"{path}: CAN'T BE READ: " in text_report, text_report


def a_full_disk_is_reported():
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full")
    for more in [], ["--json"], ["--decisions"], ["--help"]:
        with open("/dev/full", "wb") as full:
            done = subprocess.run([REPLAY, "--limit", "1/s", SAMPLE_FILE, *more], stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 1 and b"No space left" in done.stderr, (more, done)
    code, _, err = run("--limit", "1/s", "--svg", "/dev/full", SAMPLE_FILE)
    assert code == 1 and "/dev/full" in err, (code, err)


def a_closed_pipe_is_reported():
    for more in [], ["--json"], ["--decisions"]:
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([REPLAY, "--limit", "1/s", SAMPLE_FILE, *more], stdout=write, stderr=subprocess.PIPE, timeout=60)
        os.close(write)
        assert done.returncode == 1 and b"Broken pipe" in done.stderr, (more, done)


def a_picture_that_cannot_be_written_is_reported():
    code, _, err = run("--limit", "1/s", "--svg", os.path.join(FOLDER.name, "no", "x.svg"), SAMPLE_FILE)
    assert code == 1 and "No such file" in err


def help_names_every_option():
    with open(os.path.join(ROOT, "examples", "replay", "options.c")) as f:
        source = f.read()
    text = report("--help")
    names = set(re.findall(r'"(--[a-z0-9-]+)[="]', source)) - {"--help"}
    assert len(names) > 22 and all(re.search(rf"^  .*{name}\b", text, re.M) for name in names), names


def options_may_follow_files_and_use_equals_signs():
    want = good("--decisions", "--limit", "10/m", "--key", "path", SAMPLE_FILE)
    assert good(SAMPLE_FILE, "--decisions", "--limit=10/m", "--key=path") == want
    assert good("--decisions", "--limit=10/m", "--key=path", "--", SAMPLE_FILE) == want
