"""A table beside the exact buckets: --table-keys."""

from replay.common import *  # noqa: F401,F403


def no_key_is_ever_forgotten():
    log = "".join(f"1 key{i}\n" for i in range(150000)) + "".join(f"2 key{i}\n" for i in range(0, 150000, 7))
    s = summary("--limit", "1/h", "--limit", "2/d", stdin=log)
    assert s["keys"] == s["allowed"] == 150000
    assert s["refused"] == len(range(0, 150000, 7))
    assert "exact: each key has a bucket of its own" in report("--limit", "1/h", stdin="1 a\n")


def a_small_table_shows_what_it_gets_wrong():
    log = "".join(f"1.{i:04d} key{i}\n" for i in range(2000)) + "".join(f"2.{i:04d} key{i}\n" for i in range(2000))
    s = summary("--limit", "1/h", "--table-keys", "100", stdin=log)
    small = s["small_table"]
    assert s["refused"] == 2000
    assert small["capacity"] < 400 and small["evicted"] >= 4000 - 2 * small["capacity"] and small["allowed_wrongly"] >= 2000 - small["capacity"], small
    assert small["refused_wrongly"] == 0
    roomy = summary("--limit", "1/h", "--table-keys", "20000", stdin=log)["small_table"]
    assert roomy["evicted"] == roomy["allowed_wrongly"] == 0, roomy
    text = report("--limit", "1/h", "--table-keys", "100", stdin=log)
    assert f"{small['evicted']:,} keys forced out" in text and "a table for 100 keys" in text


def a_full_table_that_refuses_says_so():
    log = "".join(f"1 key{i}\n" for i in range(1000))
    small = summary("--limit", "1/h", "--table-keys", "50", "--full", "refuse", stdin=log)["small_table"]
    assert small["evicted"] == 0 and small["refused_for_room"] == small["refused_wrongly"] >= 1000 - small["capacity"], small


def a_table_that_inherits_lets_no_newcomer_through():
    log = "".join(f"1.{i:04d} key{i}\n" for i in range(1000))
    small = summary("--limit", "1/h", "--table-keys", "50", "--full", "inherit", stdin=log)["small_table"]
    assert small["allowed_wrongly"] == 0 and small["refused_wrongly"] >= 1000 - small["capacity"], small
