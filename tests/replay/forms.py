"""Every form of samples.py: the form it is taken for, key, time, method, path, status, size; and what is no request."""

from datetime import datetime, timezone

from replay.common import *  # noqa: F401,F403
from replay.samples import AGENT, CLIENT, CLOUDFRONT, MESSAGES, NO_KEY, OTHER, OTHERS, SSH_OLD, SSH_RFC, W3C, WEB, clf


def text_of(sample, times=1):
    return "\n".join(sample.lines[:-1] + sample.lines[-1:] * times) + "\n"


def second_of(stamp):
    return int(datetime.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp())


def each_form_is_named_and_its_key_and_time_are_right():
    for sample in WEB + OTHERS:
        s = summary("--limit", "1/w burst 3", stdin=text_of(sample, 4))
        assert s["inputs"][0]["forms"] == {sample.form: 4}, (sample, s["inputs"])
        assert [t["key"] for t in s["most_refused"]] == [sample.key], (sample, s["most_refused"])
        assert second_of(s["first_time"]) == second_of(s["last_time"]) == sample.seconds, (sample, s["first_time"])
        assert s["bad_lines"] == 0, (sample, s)


def the_report_says_for_each_input_what_it_was_taken_for():
    for sample in WEB[:4] + OTHERS[:4]:
        path = file_of(text_of(sample), "one.log")
        assert f"  {path}: 1 as {sample.form}\n" in report("--limit", "9/s", path), sample


def filters_and_costs_work_in_each_form_of_web_logs():
    for sample in WEB:
        log = text_of(sample)
        for args, taken in ((["--status", "401"], 1), (["--status", "4"], 1), (["--status", "200"], 0), (["--method", "GET"], 1),
                            (["--method", "POST"], 0), (["--path-prefix", "/nowhere"], 0), (["--path-prefix", "/a"], 1), (["--only", "192.0.2"], None)):
            code, out, err = run("--limit", "9/s", "--json", *args, stdin=log)
            got = json.loads(out)
            if taken is not None:
                assert (got["requests"], got["left_out"], got["bad_lines"]) == (taken, 1 - taken, 0), (sample, args, got)
        assert [d[2] for d in decisions("--limit", "10000/w", "--cost", "bytes", stdin=log)] == [10000 - sample.size], sample
        path = summary("--limit", "1/w", "--key", "path", stdin=text_of(sample, 2))["most_refused"][0]["key"]
        assert path == "/a", (sample, path)


def a_filter_that_a_form_cannot_answer_makes_the_line_bad():
    for args in ["--status", "401"], ["--method", "GET"], ["--path-prefix", "/"]:
        code, out, _ = run("--limit", "9/s", "--json", *args, stdin=OTHERS[0].lines[0] + "\n")
        assert code == 1 and args[0] in json.loads(out)["inputs"][0]["reason"], out


def sshds_messages_give_the_address_that_no_client_can_write():
    for prefix in SSH_RFC, SSH_OLD:
        for message, want in MESSAGES:
            code, out, _ = run("--limit", "1/w", "--json", stdin=(prefix + message + "\n") * 2)
            s = json.loads(out)
            got = s["most_refused"][0]["key"] if s["most_refused"] else None
            assert got == want, (message, got, want, s["inputs"])


def a_line_without_a_certain_client_is_bad_with_a_reason():
    for line in NO_KEY:
        code, out, _ = run("--limit", "1/w", "--json", stdin=line + "\n")
        s = json.loads(out)
        assert code == 1 and s["requests"] == 0 and s["bad_lines"] == 1, (line, s)
        assert len(s["inputs"][0]["reason"]) > 15, (line, s["inputs"])


def every_form_cut_off_at_every_byte_is_right_or_bad():
    for sample in WEB + OTHERS:
        if sample.whole:
            continue  # its key is at its end: a cut key is another key
        last = sample.lines[-1].encode()
        cuts = [last[:i] for i in range(len(last))]
        log = "\n".join(sample.lines[:-1]).encode() + b"\n" + b"\n".join(cuts) + b"\n"
        code, out, _ = run("--limit", "1/100w", "--json", stdin=log)
        s = json.loads(out)
        keys = {t["key"] for t in s["most_refused"]}
        assert s["keys"] <= 1 and keys <= {sample.key}, (sample, keys, s["keys"], s["most_refused"])
        if s["requests"]:
            assert second_of(s["first_time"]) == second_of(s["last_time"]) == sample.seconds, (sample, s["first_time"], s["last_time"])


def a_last_line_that_is_cut_off_in_the_address_is_bad():
    line = SSH_RFC + "Invalid user u from 192.0.2.10"
    for cut in line, line[:-1]:
        code, out, _ = run("--limit", "1/w", "--json", stdin=cut)
        assert code == 1 and "middle of the line" in json.loads(out)["inputs"][0]["reason"], out
    assert summary("--limit", "1/w", stdin=line + "\n")["requests"] == 1


def ambiguous(sample):
    """TIME KEY among lines of syslog or a container may be the beginning of one of these."""
    return sample.whole and ("2024-10-10" in sample.lines[0] or "Feb 29" in sample.lines[0])


def time_and_key_among_lines_of_syslog_is_a_line_cut_off():
    for sample in filter(ambiguous, OTHERS):
        s = summary("--limit", "9/s", stdin=text_of(sample) + SSH_RFC + MESSAGES[0][0] + "\n")
        assert (s["requests"], s["bad_lines"]) == (1, 1), (sample, s)


def all_forms_may_be_in_one_file():
    every = [sample for sample in WEB + OTHERS if not ambiguous(sample)]
    log = "".join(text_of(sample) for sample in every if not sample.lines[0].startswith("#"))
    s = summary("--limit", "9/s", stdin=log)
    assert s["bad_lines"] == 0 and s["requests"] == log.count("\n"), s["inputs"]
    with_w3c = "".join(text_of(sample) for sample in every)
    s = summary("--limit", "9/s", stdin=with_w3c)
    assert s["bad_lines"] == 0, s["inputs"]


# ---- what the reviews found (N01 to N22) ----------------------------------------------------------------------------


def clients_behind_one_virtual_host_are_many():
    log = "".join(clf(f"www.example.com 198.51.100.{i}, {OTHER}") + f" {AGENT}\n" for i in range(100))
    s = summary("--limit", "10/m burst 10", stdin=log)
    assert (s["keys"], s["refused"], s["bad_lines"]) == (100, 0, 0)


def another_port_is_no_other_client():
    s = summary("--limit", "10/m burst 10", stdin="".join(clf(f"{CLIENT}:{50000 + i}") + "\n" for i in range(100)))
    assert (s["keys"], s["refused"]) == (1, 90)


def days_made_up_in_a_user_name_refill_nothing():
    log = "".join(clf(CLIENT, f"- x [{1 + i % 28:02d}/Jan/1990:00:00:00 +0000] y") + "\n" for i in range(100))
    s = summary("--limit", "10/m burst 10", stdin=log)
    assert s["refused"] == 90 and s["first_time"][:4] == s["last_time"][:4] == "2024"


def two_addresses_before_the_time_are_told_apart_by_an_option():
    line = clf(f"{OTHER} {CLIENT}") + f" {AGENT}\n"
    assert "--host first" in json.loads(run("--limit", "1/w", "--json", stdin=line)[1])["inputs"][0]["reason"]
    assert keys_of(line, "--host", "second") == CLIENT and keys_of(line, "--host", "first") == OTHER
    assert keys_of(clf(OTHER, "- john doe") + "\n", "--host", "first") == OTHER
    log = clf(f"www.example.com {CLIENT}") + "\n" + line * 2  # after a name the file is known to have a virtual host
    assert summary("--limit", "1/w", stdin=log)["most_refused"] == [{"key": CLIENT, "refused": 2, "requests": 3}]


def the_last_quoted_field_may_be_the_key():
    line = clf(OTHER) + f' {AGENT} "{CLIENT}, 10.0.0.1"\n'
    assert keys_of(line, "--key", "-1") == CLIENT
    assert keys_of(line.replace(CLIENT, "2001:db8:1:2::3"), "--key", "-1", "--ip-prefix", "64") == "2001:db8:1:2::/64"
    assert keys_of(line, "--key", "-2") == "Agent/1.0 (X11; Linux)" and keys_of(line, "--key", "1") == OTHER
    code, out, _ = run("--limit", "1/w", "--json", "--key", "-1", stdin=clf(OTHER) + f' {AGENT} "-"\n')
    assert code == 1 and '"-"' in json.loads(out)["inputs"][0]["reason"].replace('\\"', '"')


def fields_are_named_in_json_and_w3c():
    line = WEB[[s.form for s in WEB].index("Caddy JSON")].lines[0] + "\n"
    assert keys_of(line, "--json-key", "request.headers.X-Forwarded-For.0") == "198.51.100.4"
    assert keys_of(line, "--json-key", "request.host") == "example.com"
    own = '{"when":"2024-10-10T13:55:36Z","who":{"id":17},"n":[1,{"x":"y"}]}\n'
    assert keys_of(own, "--json-key", "who.id", "--json-time", "when") == "17"
    assert keys_of(own, "--json-key", "n.1.x", "--json-time", "when") == "y"
    assert failed("--limit", "1/w", "--json-key", "who.id", "--json-time", "when", stdin=own.replace("17", "null"))["bad_lines"] == 1
    for args, text in (["--json-key", "who.name", "--json-time", "when"], "--json-key"), (["--json-key", "who.id", "--json-time", "then"], "--json-time"), (["--json-key", "who.id"], "--json-time"):
        assert text in json.loads(run("--limit", "1/w", "--json", *args, stdin=own)[1])["inputs"][0]["reason"]
    assert keys_of("\n".join(W3C) + "\n" + ("2024-10-10 13:55:36 203.0.113.77 GET /a b=c 443 ann 192.0.2.9 Agent 401 2326 187\n"), "--json-key", "cs-username") == "ann"


def columns_may_change_within_a_w3c_log():
    log = "\n".join(CLOUDFRONT) + "\n2024-10-10\t13:55:36\tLAX1\t1\t192.0.2.1\tGET\th\t/a\t200\t-\t-\t-\t-\tHit\n"
    log += "#Fields: c-ip date time\n192.0.2.1 2024-10-10 13:55:37\n192.0.2.1 2024-10-10\n"
    s = summary("--limit", "1/w", stdin=log)
    assert (s["requests"], s["keys"], s["bad_lines"]) == (2, 1, 1) and "#Fields" in s["inputs"][0]["reason"], s


def a_message_repeated_counts_as_often():
    first = SSH_OLD + "Failed password for root from 192.0.2.9 port 5 ssh2\n"
    again = SSH_OLD + "message repeated 5 times: [ Failed password for root from 192.0.2.9 port 5 ssh2]\n"
    s = summary("--limit", "1/w", stdin=first + again)
    assert (s["requests"], s["keys"], s["refused"], s["bad_lines"]) == (6, 1, 5, 0), s
    s = summary("--limit", "1/w", stdin=first + "Feb 29 13:55:40 host1 last message repeated 2 times\n")
    assert (s["requests"], s["keys"], s["refused"], s["bad_lines"]) == (3, 1, 2, 0), s
    for bad in again.replace(" 5 ", " 0 "), again.replace(" 5 ", " 4294967296 "), "Feb 29 13:55:40 host1 last message repeated 2 times\n":
        assert run("--limit", "1/w", "--json", stdin=bad)[0] == 1, bad


def rotated_files_are_one_history_over_a_new_year():
    old = "".join(f"Dec 31 23:59:{i:02d} 192.0.2.9 failed-password\n" for i in range(10, 20))
    new = "".join(f"Jan  1 00:01:{i:02d} 192.0.2.9 failed-password\n" for i in range(10, 20))
    names = [("auth.log.1", "auth.log"), ("auth.log-20251231", "auth.log"), ("auth.log-20251231", "auth.log-20260101"), ("auth.log.2", "auth.log.1"), ("first", "second"), ("b", "a")]
    for first, second in names:
        paths = [file_of(old, first), file_of(new, second)]
        for order in paths, paths[::-1]:
            s = summary("--limit", "10/d burst 10", *order)
            assert (s["allowed"], s["refused"]) == (10, 10), (order, s["first_time"], s["last_time"])
            assert s["last_time"] < "2001-01-02", s["last_time"]


def a_rotated_file_may_have_a_turn_of_the_year_in_it():
    paths = [file_of("Nov  1 00:00:00 a x\nJan  1 00:00:00 a x\nApr  1 00:00:00 a x\n", "m.log.2"), file_of("Apr  2 00:00:00 a x\n", "m.log.1"), file_of("", "m.log")]
    s = summary("--limit", "9/s", *paths)
    assert (s["first_time"][:10], s["last_time"][:10], s["bad_lines"]) == ("2000-11-01", "2001-04-02", 0), s


def a_29_february_says_which_year_it_is():
    log = "Dec 31 23:59:59 192.0.2.9 x\nFeb 28 00:00:00 192.0.2.9 x\nFeb 29 00:00:00 192.0.2.9 x\n"
    for s in summary("--limit", "9/s", stdin=log), summary("--limit", "9/s", file_of(log)):
        assert (s["requests"], s["bad_lines"], s["assumed_year"]) == (3, 0, 1999), s
    code, out, _ = run("--limit", "9/s", "--json", "--year", "2001", stdin=log)
    assert json.loads(out)["bad_lines"] == 1 and "--year" in json.loads(out)["inputs"][0]["reason"]


def a_byte_order_mark_is_passed_over():
    line = (clf(CLIENT) + "\n").encode()
    for log in b"\xef\xbb\xbf" + line * 3, b"\xef\xbb\xbf" + b"1 a\n1 a\n":
        s = summary("--limit", "1/w", stdin=log)
        assert s["keys"] == 1 and s["bad_lines"] == 0
    for codec in "utf-16", "utf-16-le", "utf-16-be":
        for more in [], ["--key", "1"]:
            code, _, err = run("--limit", "1/w", *more, stdin=(clf(CLIENT) + "\n").encode(codec))
            assert code == 1 and "UTF-16" in err and "iconv" in err, (codec, err)


def a_log_whose_newest_lines_come_first_says_so_in_the_headline():
    log = "".join(f"{i} a\n" for i in range(5000, 0, -1))
    text = report("--limit", "9/s", "--reorder", "100", stdin=log)
    assert text.split("\n")[0].startswith("NOT RIGHT: 4,900 of 5,000 requests came too late") and "newest first: tac" in text.split("\n")[0], text[:200]
    text = report("--limit", "9/s", stdin=log)
    assert text.startswith("9/s per address\n") and "the lines come newest first; all could be sorted" in text


def a_line_left_out_costs_nothing():
    log = clf(CLIENT) + "\n" + clf(CLIENT).replace("GET", "POST") + "\n"
    s = summary("--limit", "1/w", "--method", "POST", stdin=log)
    assert (s["requests"], s["left_out"], s["refused"]) == (1, 1, 0)
    assert "left out                  1" in report("--limit", "1/w", "--only", "POST", stdin=log)
    code, out, _ = run("--limit", "1/w", "--only", "nowhere", stdin=log)
    assert code == 1 and out.startswith(b"NOTHING LEFT: all 2 lines"), out
