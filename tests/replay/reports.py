"""The report as text, JSON and picture."""

import os
import re
import xml.etree.ElementTree
from collections import Counter
from datetime import datetime

from replay.common import *  # noqa: F401,F403


def model_counts(limit):
    requests = clf_requests(SAMPLE)
    key_of = {line: key.decode() for _, line, key, _ in requests}
    asked, refused = Counter(), Counter()
    for line, allowed, _, _ in model(requests, limit):
        asked[key_of[line]] += 1
        refused[key_of[line]] += not allowed
    return asked, +refused


def the_summary_in_json_equals_the_models():
    asked, refused = model_counts("10/m burst 20")
    s = summary("--limit", "10/m burst 20", SAMPLE_FILE)
    assert s["limits"] == ["10/m burst 20"]
    assert s["requests"] == sum(asked.values()) and s["keys"] == len(asked)
    assert s["refused"] == sum(refused.values()) and s["allowed"] == s["requests"] - s["refused"]
    assert s["keys_refused"] == len(refused) and abs(s["share_refused"] - s["refused"] / s["requests"]) < 1e-6
    top = s["most_refused"]
    assert [t["refused"] for t in top] == sorted(refused.values(), reverse=True)[:10]
    assert all(refused[t["key"]] == t["refused"] and asked[t["key"]] == t["requests"] for t in top)
    assert s["bad_lines"] == SAMPLE.count(b"\n") - s["requests"] > 0


def the_bins_add_up_and_lie_where_the_requests_do():
    s = summary("--limit", "10/m burst 20", SAMPLE_FILE)
    assert sum(b["allowed"] for b in s["bins"]) == s["allowed"] and sum(b["refused"] for b in s["bins"]) == s["refused"]
    width = s["bin_ns"] // 10**9
    want = Counter(ns // 10**9 // width * width for ns, _, _, _ in clf_requests(SAMPLE))
    for b in s["bins"]:
        at = int(datetime.strptime(b["time"][:19] + " +0000", "%Y-%m-%dT%H:%M:%S %z").timestamp())
        assert want[at] == b["allowed"] + b["refused"], b


def the_time_series_fits_any_span():
    for step, want in ("0.001", 10**6), ("1", 10**9), ("60", 6 * 10**10), ("86400", 864 * 10**11), ("31536000", None):
        whole, _, part = step.partition(".")
        ns = int(whole) * 10**9 + int((part + "0" * 9)[:9])
        log = "".join(f"{i * ns // 10**9}.{i * ns % 10**9:09d} a\n" for i in range(500))
        s = summary("--limit", "1/ms", stdin=log)
        assert len(s["bins"]) <= 1000 and sum(b["allowed"] for b in s["bins"]) == 500, step
        assert want is None or s["bin_ns"] <= want, (step, s["bin_ns"])


def the_report_says_all_there_is_to_say():
    asked, refused = model_counts("10/m burst 20")
    text = report("--limit", "10/m burst 20", SAMPLE_FILE, env={"LC_ALL": "C"})
    assert text.isascii() and text.startswith("10/m burst 20 per address\n")
    for name, value in ("requests", sum(asked.values())), ("keys", len(asked)), ("refused", sum(refused.values())), ("keys refused", len(refused)):
        assert re.search(rf"^  {name} +{value:,}\b", text, re.M), (name, value, text)
    assert f"{100 * sum(refused.values()) / sum(asked.values()):.2f} % of requests" in text
    for key, count in refused.most_common(10)[:5]:
        assert re.search(rf"^  {re.escape(key)} +{count:,} +{asked[key]:,}$", text, re.M), key
    assert "requests per minute     : allowed   # refused" in text
    assert re.search(r"memory: [\d.]+ MB", text) and re.search(r"^  [\d,]+ decisions per second", text, re.M)


def the_chart_is_drawn_to_scale():
    log = "600 a\n" * 100 + "".join(f"{660 + i} b{i % 40}\n" for i in range(40)) + "720 c\n" * 70 + "780 d\n"
    text = report("--limit", "50/w", stdin=log, env={"LC_ALL": "C"})
    rows = [line[13:].ljust(288) for line in text.split("\n") if re.match(r"^ {2}[ \d,]{9} \|", line)]
    assert len(rows) == 10, text
    columns = ["".join(row[x] for row in rows) for x in range(0, 288, 3)]
    drawn = [c for c in columns if c.strip()]
    # from the top, at a scale of 100: 50 refused on 50 allowed; then 10 in each of four bins; 20 refused on 50; 1 is seen
    assert drawn == ["#####:::::"] + 4 * ["         :"] + ["   ##:::::", "         :"], drawn


def utf8_is_used_where_the_terminal_has_it():
    assert "█ refused" in report("--limit", "9/s", stdin="1 a\n", env={"LANG": "C.UTF-8"})
    assert report("--limit", "9/s", stdin="1 a\n", env={"LC_ALL": "C", "LANG": "C.UTF-8"}).isascii()


HOSTILE = ['\x1b[2J\x07', '\x9b2J'.encode("latin-1").decode("latin-1"), '"\\<&>\'', '\u202egnp', '\ufffe\u200b', '</text><script>', '\x7f']


def hostile_keys_harm_neither_terminal_nor_files():
    log = "".join(f"1 {key}\n" * 2 for key in HOSTILE).encode() + b"1 \xff\xc2\n" * 2
    path = os.path.join(FOLDER.name, "hostile.svg")
    text = report("--limit", "1/w", "--svg", path, stdin=log)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b\ufffe]", text), text
    assert "\\x1b[2J\\x07" in text and "\\xff\\xc2" in text
    s = summary("--limit", "1/w", stdin=log)
    keys = [t["key"] for t in s["most_refused"]]
    assert len(keys) == len(HOSTILE) + 1 and "\"\\<&>'" in keys and "\\x1b[2J\\x07" in keys, keys
    texts = ["".join(e.itertext()) for e in xml.etree.ElementTree.parse(path).iter()]
    assert "</text><script>" in texts and "\"\\<&>'" in texts


def long_keys_are_cut_where_they_would_break_the_layout():
    text = report("--limit", "1/w", stdin=("1 " + "k" * 5000 + "\n") * 2)
    assert max(map(len, text.split("\n"))) < 130 and "kkk..." in text
    assert summary("--limit", "1/w", stdin=("1 " + "k" * 5000 + "\n") * 2)["most_refused"][0]["key"] == "k" * 5000


def the_picture_is_valid_and_shows_every_request():
    path = os.path.join(FOLDER.name, "x.svg")
    s = summary("--limit", "10/m burst 20", "--svg", path, SAMPLE_FILE)
    root = xml.etree.ElementTree.parse(path).getroot()
    ns = "{http://www.w3.org/2000/svg}"
    assert root.tag == ns + "svg" and "prefers-color-scheme:dark" in root.find(ns + "style").text
    assert root.find(ns + "title").text == "10/m burst 20 per address \u2014 sample.log"
    bars = [re.search(r": ([\d,]+) allowed, ([\d,]+) refused", g.find(ns + "title").text).groups() for g in root.iter(ns + "g")]
    allowed, refused = (sum(int(b[i].replace(",", "")) for b in bars) for i in (0, 1))
    assert (allowed, refused) == (s["allowed"], s["refused"])
    texts = [e.text for e in root.iter(ns + "text")]
    most = max(t["requests"] for t in s["most_refused"])
    shown = [t for t in s["most_refused"] if t["requests"] * 100 >= most]
    for t in shown:
        assert t["key"] in texts and f"{t['refused']:,} of {t['requests']:,}" in texts, t
    assert 0 < len(shown) < s["keys_refused"] and f"and {s['keys_refused'] - len(shown)} more keys" in texts, texts
    assert "allowed" in texts and "refused" in texts and "14:30" in texts and "0" in texts
    for e in root.iter(ns + "rect"):
        x, y, w, h = (float(e.get(a)) for a in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and w >= 0 and h >= 0 and x + w <= 960.1, e.attrib


def a_picture_of_nothing_is_valid():
    path = os.path.join(FOLDER.name, "nothing.svg")
    for log in "", "nonsense\n", "1 a\n":
        assert run("--limit", "1/s", "--svg", path, stdin=log)[0] == (log == "nonsense\n")
        xml.etree.ElementTree.parse(path)


def a_log_about_one_proxy_is_asked_about():
    log = COMBINED * 95 + COMBINED.replace("192.0.2.1", "192.0.2.2") * 5
    assert "9 of 10 requests have one address: if it is a proxy" in report("--limit", "9/s", stdin=log)
    assert "9 of 10" not in report("--limit", "9/s", SAMPLE_FILE) and "9 of 10" not in report("--limit", "9/s", "--key", "path", stdin=log)


def allowed_comes_before_refused_in_both_charts():
    path = os.path.join(FOLDER.name, "order.svg")
    report("--limit", "10/m burst 20", "--svg", path, SAMPLE_FILE)
    ns = "{http://www.w3.org/2000/svg}"
    bars, rows = 0, {}
    for g in xml.etree.ElementTree.parse(path).getroot().iter(ns + "g"):
        look = {e.get("class"): e for e in g.iter(ns + "rect")}
        if "refused" in look and "allowed" in look:
            bars += 1  # refused ends where allowed begins, above it
            assert abs(float(look["refused"].get("y")) + float(look["refused"].get("height")) - float(look["allowed"].get("y"))) < 0.2
    for e in xml.etree.ElementTree.parse(path).getroot().findall(ns + "rect"):
        if e.get("height") == "16.0":
            rows.setdefault(e.get("y"), {})[e.get("class")] = float(e.get("x")), float(e.get("width"))
    assert bars > 50 and len(rows) == 3, (bars, rows)
    for row in rows.values():
        assert abs(row["allowed"][0] + row["allowed"][1] - row["refused"][0]) < 0.2, row
