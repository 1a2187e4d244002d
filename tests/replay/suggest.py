"""--suggest: the ladder equals a search of our own through all round limits; --compare: candidates side by side."""

import re

from replay.common import *  # noqa: F401,F403


def round_numbers(most):
    out = [1, 2, 3, 4, 5, 6, 8] + [m * 10**e for e in range(13) for m in (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)]
    return [n for i, n in enumerate(out) if i == 0 or out[i - 1] < most]


PERIODS = {"d": 24, "h": 60, "m": 60, "s": 10**9}


def peaks(requests, tokens, unit):
    """The deepest debt of each key under a rate, in tokens: the burst that it needs."""
    per, debt, last, deepest = UNITS[unit], {}, {}, {}
    for now, _, key, n in requests:
        debt[key] = max(0, debt.get(key, 0) - (now - last.get(key, now)) * tokens) + n * per
        last[key] = now
        deepest[key] = max(deepest.get(key, 0), debt[key])
    return [-(-d // per) for d in deepest.values()]


def tightest(requests, may_refuse):
    """The limit for which burst and a minute's tokens are least, of equals the smaller burst."""
    total = {}
    for _, _, key, n in requests:
        total[key] = total.get(key, 0) + n
    most, best = max(total.values()), None
    for unit, below in PERIODS.items():
        for tokens in (n for n in round_numbers(min(below, max(60, 2 * most + 1))) if n < below):
            needs = sorted(peaks(requests, tokens, unit), reverse=True)
            need = needs[may_refuse] if may_refuse < len(needs) else 1
            burst = next(b for b in round_numbers(most) if b >= need)
            if burst * UNITS[unit] // tokens > 2**62:
                continue  # no limit's burst takes longer to come back
            per_day = tokens * UNITS["d"] // UNITS[unit]
            if best is None or (burst * 1440 + per_day, burst) < best[0]:
                best = (burst * 1440 + per_day, burst), f"{tokens}/{unit}"
    return best[0][0] // 1440, best[1], best[0][1]


def text_of(rate, burst):
    limit = Limit(f"{rate} burst {burst}")
    return limit.tokens, limit.per, limit.burst


def numbers_of(text):
    limit = Limit(text)
    return limit.tokens, limit.per, limit.burst


def ladder_of(log, *args):
    return summary("--suggest", *args, stdin=log)["ladder"]


def check(requests, ladder, keys):
    assert sorted(share for g in ladder for share in g["shares"]) == [0, 0.001, 0.005, 0.01, 0.05]
    for g in ladder:
        for share in g["shares"]:
            assert g["may_refuse"] == (max(1, int(keys * share)) if share else 0), g
        minute, rate, burst = tightest(requests, g["may_refuse"])
        assert (g["minute"], numbers_of(g["limit"])) == (minute, text_of(rate, burst)), (g, minute, rate, burst)
        decided = model(requests, g["limit"])
        refused = {}
        key_of = {line: key for _, line, key, _ in requests}
        for line, allowed, _, _ in decided:
            if not allowed:
                refused[key_of[line]] = refused.get(key_of[line], 0) + 1
        assert g["keys_refused"] == len(refused) <= g["may_refuse"] and g["refused"] == sum(refused.values()), g
        if refused:
            first = g["most_refused"][0]
            assert first["refused"] == max(refused.values()) == refused[first["key"].encode() if isinstance(next(iter(refused)), bytes) else first["key"]], g


def each_rung_is_the_tightest_round_limit_of_all():
    requests = sorted(clf_requests(SAMPLE), key=lambda r: r[0])
    keys = len({r[2] for r in requests})
    check(requests, ladder_of(SAMPLE), keys)


def each_rung_is_the_tightest_for_random_logs():
    random = Random(SEED)
    for _ in range(40):
        span = random.choice([2, 60, 4000, 10**6])
        cost = random.choice([0, 0, 5, 3000])
        log = "".join(f"{random.below(span)}.{random.below(10**9):09d} key{random.below(3) * random.below(30)}" + (f" {random.below(cost) + 1}" if cost else "") + "\n"
                      for _ in range(random.between(1, 300)))
        requests = sorted(plain_requests(log), key=lambda r: r[0])
        check(requests, ladder_of(log), len({r[2] for r in requests}))


def limits_are_round():
    for g in ladder_of(SAMPLE) + ladder_of(SAMPLE, "--key", "path") + ladder_of(SAMPLE, "--cost", "bytes"):
        for n in map(int, re.findall(r"\d+", g["limit"])):
            assert n in (1, 2, 3, 4, 5, 6, 8) or n in round_numbers(10**12), g["limit"]


def with_few_keys_at_least_one_may_be_refused():
    log = "".join(f"{i * 60} key{i % 180}\n" for i in range(2000)) + "".join(f"{i} attacker\n" for i in range(0, 2000, 2))
    s = summary("--suggest", stdin=log)
    assert s["ladder"][1]["may_refuse"] == 1 and s["most_refused"][0]["key"] == "attacker" and s["keys_refused"] == 1, s["ladder"]
    text = report("--suggest", stdin=log)
    assert re.search(r"^ \*0\.1, 0\.5 and 1 % .*attacker$", text, re.M), text


def the_share_says_what_the_report_is_about():
    for share, wanted in ("0.1%", 0.001), ("0.001", 0.001), ("0", 0), ("1%", 0.01), ("20%", 0.2), ("0.7", 0.7), ("100%", 1):
        s = summary("--suggest=" + share, SAMPLE_FILE)
        rung = [g for g in s["ladder"] if wanted in g["shares"]][0]
        assert s["suggested"] == rung["limit"] == s["limits"][0], (share, s["ladder"])
        assert s["suggested_keys_refused"] == s["keys_refused"] <= max(1, int(s["keys"] * wanted)) * (wanted > 0)
        assert summary("--limit", s["suggested"], SAMPLE_FILE)["refused"] == s["refused"]


def the_suggestion_is_a_line_that_can_be_pasted():
    text = report("--suggest", SAMPLE_FILE)
    line = re.search(r'^--limit "([^"]+)"$', text, re.M)
    assert line and text.startswith(line[1] + " per address\n"), text
    assert report("--limit", line[1], SAMPLE_FILE).split("\n")[0] == line[1] + " per address"


def a_suggestion_is_found_for_standard_input_too():
    assert summary("--suggest", stdin=SAMPLE)["ladder"] == summary("--suggest", SAMPLE_FILE)["ladder"]


def a_share_may_follow_suggest_and_a_file_too():
    assert summary("--suggest", "5%", SAMPLE_FILE)["suggested"] == summary("--suggest=0.05", SAMPLE_FILE)["suggested"]


def a_limit_given_with_suggest_is_the_one_reported():
    s = summary("--suggest", "--limit", "10/m burst 20", SAMPLE_FILE)
    assert s["limits"] == ["10/m burst 20"] and s["refused"] == summary("--limit", "10/m burst 20", SAMPLE_FILE)["refused"] and s["suggested"]
    want = good("--decisions", "--limit", "10/m burst 20", SAMPLE_FILE)
    assert good("--decisions", "--suggest", "--limit", "10/m burst 20", SAMPLE_FILE) == want


def memory_for_a_ladder_does_not_grow_with_the_length_of_the_log():
    lines = [f"{i} key{i % 100}\n" for i in range(100000)]
    short, long = (summary("--suggest", "--reorder", "1000", "--compare", "5/s", stdin="".join(lines[:n])) for n in (5000, 100000))
    assert long["requests"] == 100000 and long["memory_bytes"] < short["memory_bytes"] * 1.2


# ---- candidates ---------------------------------------------------------------------------------------------------


def candidates_are_decided_each_for_itself():
    limits = ["10/m burst 20", "30/m burst 60", "1/s, 100/h burst 50", "4/m"]
    s = summary(*(x for limit in limits for x in ("--compare", limit)), SAMPLE_FILE)
    assert [c["limit"] for c in s["candidates"]] == limits
    for c in s["candidates"]:
        alone = summary(*(x for limit in c["limit"].split(", ") for x in ("--limit", limit)), SAMPLE_FILE)
        assert (c["refused"], c["keys_refused"], c["most_refused"]) == (alone["refused"], alone["keys_refused"], alone["most_refused"]), c["limit"]


def candidates_are_in_one_table_with_their_worst_hit_keys():
    text = report("--limit", "10/m burst 20", "--compare", "4/m", "--compare", "1000000/s", SAMPLE_FILE)
    assert text.startswith("3 candidates per address\n")
    assert re.search(r"^   1  10/m burst 20 +4,663 +25 % +9 +0\.8 %$", text, re.M), text
    assert re.search(r"^   2  4/m +9,999 +53 % +957 +81 %$", text, re.M) and re.search(r"^   3  1000000/s +0 +0 % +0 +0 %$", text, re.M)
    assert re.search(r"^  203\.0\.113\.200 +3,343 +3,224 +3,300 +0$", text, re.M)
    assert text.count("requests per minute") == 3 and "under 4/m" in text


def several_limits_stay_all_or_none_and_the_report_says_so():
    text = report("--limit", "10/m", "--limit", "100/h", stdin="1 a\n")
    assert text.startswith("10/m, 100/h per address: a request must pass all, else it costs nothing in any (--compare: side by side)\n"), text
    assert "must pass all" not in report("--limit", "10/m", stdin="1 a\n")
