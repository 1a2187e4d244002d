"""What is taken from each line: key, time, cost."""

from datetime import datetime

from replay.common import *  # noqa: F401,F403


def common_and_combined_lines_are_read():
    common = '192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 512\n'
    assert keys_of([common, COMBINED, COMBINED.replace("\n", "\r\n")]) == ["192.0.2.1"] * 3


def a_user_with_blanks_and_brackets_is_read():
    assert keys_of(COMBINED.replace("- - [", "- john [x] doe [")) == "192.0.2.1"


def a_virtual_host_before_the_address_is_passed_over():
    assert keys_of(["www.example.com:443 " + COMBINED, COMBINED.replace("192.0.2.1", "client.example")]) == ["192.0.2.1", "client.example"]


def quotes_in_a_request_do_not_end_it():
    line = COMBINED.replace("/a?b=c", '/a\\"b')
    assert keys_of(line, "--key", "path") == '/a\\"b'
    assert [d[2] for d in decisions("--limit", "1000/w", "--cost", "bytes", stdin=line)] == [1000 - 512]


def requests_that_are_no_requests_have_a_path_too():
    assert keys_of([COMBINED.replace("GET /a?b=c HTTP/1.1", r) for r in ("-", "\\x16\\x03\\x01")], "--key", "path") == ["-", "\\x16\\x03\\x01"]


def time_zones_are_honoured():
    zones = ["17/May/2015:12:05:03 +0200", "17/May/2015:04:35:03 -0530", "18/May/2015:00:05:03 +1400", "17/May/2015:10:05:03 +0000"]
    log = "".join(COMBINED.replace("17/May/2015:10:05:03 +0000", zone) for zone in zones)
    s = summary("--limit", "9/s", stdin=log)
    assert s["first_time"] == s["last_time"] == "2015-05-17T10:05:03.000000000Z", s


def the_calendar_is_right_for_every_month_and_leap_year():
    log, want = "", []
    for year in 1970, 1999, 2000, 2015, 2016, 2100, 2553:
        for month in "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split():
            for day in 1, 28, 29, 30, 31:
                stamp = f"{day:02d}/{month}/{year}:23:59:59 +0000"
                try:
                    at = int(datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").timestamp())
                except ValueError:
                    at = 0  # no such day: a bad line
                else:
                    want += [(len(log.split("\n")), 1, 0, 0), (len(log.split("\n")) + 1, 0, 0, 1)]
                # the plain line has the same key and time, so it is refused, for one ns more
                log += f"{year}{month}{day} - - [{stamp}] \"\"\n" + (f"{at} {year}{month}{day}\n" if at else "#\n")
    assert len(want) > 700
    assert decisions("--limit", "1/ns", stdin=log) == sorted(want)


def the_forms_may_be_mixed():
    log = COMBINED + "Dec 10 06:55:48 198.18.0.1 failed-password\n" + "1500000000.5 alice 3\n"
    s = summary("--limit", "9/s", stdin=log)
    assert (s["requests"], s["keys"], s["bad_lines"]) == (3, 3, 0)


def the_size_in_bytes_is_the_cost():
    for size, cost in ("512", 512), ("-", 1), ("0", 1), ("1", 1):
        line = COMBINED.replace(" 512 ", f" {size} ")
        assert [d[2] for d in decisions("--limit", "1000/w", "--cost", "bytes", stdin=line)] == [1000 - cost], size
    assert [d[2] for d in decisions("--limit", "1000/w", stdin=COMBINED)] == [999]


def a_plain_lines_cost_is_in_tokens():
    assert [d[2] for d in decisions("--limit", "9/w", stdin="1 a 3\n1 b\n1 c 0\n")] == [6, 8, 8]


def a_key_may_be_any_field():
    assert keys_of([COMBINED] * 3, "--key", "1") == ["192.0.2.1"] * 3
    assert keys_of(COMBINED, "--key", "6") == "GET /a?b=c HTTP/1.1" and keys_of(COMBINED, "--key", "7") == "200"
    assert keys_of(COMBINED.replace("192.0.2.1", "2001:db8:1::5"), "--key", "1", "--ip-prefix", "48") == "2001:db8:1::/48"
    assert keys_of("5 alice 1 x\n", "--key", "4") == "x"
    for field in "99", "-99":
        assert failed("--limit", "1/s", "--key", field, stdin=COMBINED)["bad_lines"] == 1


def addresses_are_cut_to_their_prefix():
    v6 = [COMBINED.replace("192.0.2.1", a) for a in ("2001:db8:1:2:3::4", "2001:DB8:1:2:0:0:0:1", "2001:db8:1:3::", "[2001:db8:1:3::]:443")]
    assert keys_of(v6, "--ip-prefix", "64") == ["2001:db8:1:2::/64", "2001:db8:1:2::/64", "2001:db8:1:3::/64", "2001:db8:1:3::/64"]
    assert keys_of(v6[:2], "--ip-prefix", "47") == ["2001:db8::/47"] * 2
    assert keys_of(v6[0], "--ip-prefix", "0") == "::/0"
    assert keys_of(v6[:2]) == ["2001:db8:1:2:3::4", "2001:db8:1:2::1"]
    assert keys_of(COMBINED, "--ipv4-prefix", "23") == "192.0.2.0/23"
    assert keys_of(COMBINED, "--ipv4-prefix", "30", "--ip-prefix", "8") == "192.0.2.0/30"


def a_mapped_ipv4_address_is_the_ipv4_address():
    mapped = [COMBINED.replace("192.0.2.1", a) for a in ("::ffff:192.0.2.1", "::FFFF:c000:201", "0:0:0:0:0:ffff:192.0.2.1")]
    assert keys_of(mapped, "--ip-prefix", "64") == ["192.0.2.1"] * 3
    assert keys_of(mapped, "--ipv4-prefix", "24") == ["192.0.2.0/24"] * 3


def the_ip_prefix_applies_to_ip_and_path_too():
    line = COMBINED.replace("192.0.2.1", "2001:db8::7")
    assert keys_of(line, "--key", "ip+path", "--ip-prefix", "32") == "2001:db8::/32 /a"


def sshds_own_lines_are_read():
    log = ["Dec 10 06:55:48 host1 sshd[24200]: Failed password for invalid user from 5 from 203.0.113.186 port 38926 ssh2\n",
           "Dec  1 06:55:48 2001:db8::1 failed-password\n", "Dec 10 06:55:48 alice failed-password\n",
           "Dec 10 06:55:48 host1 sshd[24200]: Forwarding with 198.51.100.1 from 198.51.100.2 refused\n"]
    assert keys_of(log) == ["203.0.113.186", "2001:db8::1", "alice", "198.51.100.2"]
    assert failed("--limit", "9/s", stdin="Dec 10 06:55:48 host1 sshd[24200]: Server listening on 0.0.0.0 port 22.\n")["bad_lines"] == 1


def the_turn_of_the_year_is_a_turn_forward():
    log = "Nov 30 10:00:00 a x\nDec 31 23:59:59 a x\nJan  1 00:00:00 a x\nDec 31 23:59:58 a x\nJan  1 00:00:01 a x\nFeb 29 00:00:00 a x\n"
    s = summary("--limit", "9/s", "--year", "2003", stdin=log)
    assert (s["first_time"][:10], s["last_time"][:10], s["assumed_year"]) == ("2003-11-30", "2004-02-29", 2003), s
    assert [d[0] for d in decisions("--limit", "9/s", "--year", "2003", stdin=log)] == [1, 4, 2, 3, 5, 6]
    assert summary("--limit", "9/s", "--year", "2001", stdin=log)["first_bad_line"] == 6  # no 29 February in 2002


def several_turns_of_the_year_are_followed():
    log = "Mar  1 00:00:00 a x\nJan  1 00:00:00 a x\nDec  1 00:00:00 a x\nMar  1 00:00:00 a x\n".replace("Dec", "Nov")
    s = summary("--limit", "9/s", stdin=log)
    assert (s["first_time"][:10], s["last_time"][:10]) == ("2000-03-01", "2002-03-01"), s


def a_line_late_by_a_month_is_no_turn_of_the_year():
    s = summary("--limit", "9/s", stdin="Mar  1 00:00:00 a x\nFeb 29 23:59:59 a x\nMar  1 00:00:01 a x\n")
    assert (s["first_time"], s["last_time"][:10]) == ("2000-02-29T23:59:59.000000000Z", "2000-03-01"), s


def the_assumed_year_is_said():
    assert "2000 (--year)" in report("--limit", "9/s", stdin="Mar  1 00:00:00 a x\n")
    assert "--year" not in report("--limit", "9/s", stdin="1 a\n")
