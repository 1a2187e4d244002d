"""Every decision equals the model's."""

from datetime import datetime

from replay.common import *  # noqa: F401,F403


def every_decision_on_the_sample_equals_the_models():
    for limits in LIMITS:
        compare(clf_requests(SAMPLE), limits, SAMPLE_FILE)


def path_keys_decide_as_the_model():
    for key in "path", "ip+path":
        for limits in ["10/m burst 20"], ["1/s", "30/m burst 30"]:
            compare(clf_requests(SAMPLE, key), limits, "--key", key, SAMPLE_FILE)


def the_cost_in_bytes_decides_as_the_model():
    for limits in ["1000000/m burst 2000000"], ["50000/s"], ["1/s burst 40000", "3000000/h window"]:
        compare(clf_requests(SAMPLE, cost="bytes"), limits, "--cost", "bytes", SAMPLE_FILE)


def random_plain_logs_decide_as_the_model():
    random = Random(SEED)
    for _ in range(60):
        now, lines = random.below(10**12), []
        step = random.choice([1, 1000, 10**6, 10**8, 10**9, 10**11])
        for _ in range(random.between(1, 400)):
            now += random.below(3) * random.below(step + 1)
            cost = random.choice(["", "", f" {random.below(9)}"])
            back = min(now, random.below(2) * random.below(5 * step))
            lines.append(f"{(now - back) // 10**9}.{(now - back) % 10**9:09d} key{random.below(4)}{cost}\n")
        limits = []
        for _ in range(random.between(1, 3)):
            per = random.choice(["ns", "us", "ms", "s", "m", "h"])
            limits.append(f"{random.between(1, 50)}/{random.between(1, 90)}{per}" + random.choice(["", " window", f" burst {random.between(1, 60)}"]))
        compare(plain_requests("".join(lines)), limits, stdin="".join(lines))


def fractions_of_a_second_are_exact_to_the_ns():
    log = "0 a\n0.142857142 a\n0.142857143 a\n0.285714285 a\n0.285714286 a\n1.0000000009 a\n"
    assert decisions("--limit", "7/s burst 1", stdin=log) == [
        (1, 1, 0, 0), (2, 0, 0, 1), (3, 1, 0, 0), (4, 0, 0, 1), (5, 1, 0, 0), (6, 1, 0, 0)]
    assert decisions("--limit", "1/s", stdin="18446744073.709551615 a\n18446744073.709551616 a\n") == [(1, 1, 0, 0)]


def two_limits_on_one_key_have_a_bucket_each():
    assert [d[1] for d in decisions("--limit", "1/h burst 2", "--limit", "1/h burst 2", stdin="1 a\n1 a\n1 a\n")] == [1, 1, 0]


def a_request_that_one_limit_refuses_costs_nothing_in_the_others():
    log = "1 a\n1 a\n1 a\n2 a\n"  # the second and third must not empty the bucket of 2
    assert [d[1] for d in decisions("--limit", "1/s", "--limit", "1/h burst 2", stdin=log)] == [1, 0, 0, 1]


def a_cost_above_the_burst_is_refused_for_ever():
    assert decisions("--limit", "1/s burst 5", stdin="1 a 6\n1 a 5\n") == [(1, 0, 5, FOREVER), (2, 1, 0, 0)]
    assert summary("--limit", "1/s burst 5", stdin="1 a 6\n1 a 5\n")["above_burst"] == 1


def an_unlimited_limit_refuses_nothing():
    assert summary("--limit", "unlimited", SAMPLE_FILE)["refused"] == 0


def the_web_log_has_497_refused_requests_of_31_addresses():
    path = real("web-access.log")
    s = summary("--limit", "10/m burst 20", path)
    assert (s["requests"], s["keys"], s["refused"], s["keys_refused"]) == (10000, 1753, 497, 31), s
    assert s["most_refused"][0] == {"key": "198.18.4.138", "refused": 151, "requests": 357}, s["most_refused"][0]
    assert s["too_late"] == 0 and s["bad_lines"] == 0


def every_decision_on_the_web_log_equals_the_models():
    path = real("web-access.log")
    with open(path, "rb") as f:
        content = f.read()
    for limits in LIMITS:
        compare(clf_requests(content), limits, path)
    compare(clf_requests(content, "ip+path"), ["1/m burst 2"], "--key", "ip+path", path)
    compare(clf_requests(content, "path"), ["1/m burst 2", "9/h"], "--key", "path", path)
    compare(clf_requests(content, cost="bytes"), ["1000000/m burst 9000000"], "--cost=bytes", path)


def every_decision_on_the_ssh_log_equals_the_models():
    path = real("ssh-auth.log")
    requests = []
    with open(path) as f:
        for number, line in enumerate(f, 1):
            month, day, clock, address = line.split()[:4]
            when = datetime.strptime(f"2000 {month} {day} {clock} +0000", "%Y %b %d %H:%M:%S %z")
            requests.append((int(when.timestamp()) * 10**9, number, address, 1))
    for limits in LIMITS:
        compare(requests, limits, path)
