"""--as: each line is taken by the program it is for, and says the limit."""

import os
import re
import shutil
import subprocess

from replay.common import *  # noqa: F401,F403

LIMITS = ["10/m burst 20", "10/s", "1/s burst 1", "0.5/s burst 3", "7/m burst 9", "3/7s burst 11", "90/h burst 30", "20/m window", "1000/d burst 1000", "100000/s burst 5"]
KEYS = ["ip", "path", "ip+path"]


def written(program, *args):
    return report("--as", program, *args, stdin="1 a\n")


def needed(program):
    found = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin:/usr/local/sbin")
    if not found and os.environ.get("SKIP_MISSING"):
        raise Skip(program + " is missing")
    assert found, f"{program} is missing (package {program}; make deps installs it)"
    return found


def tested(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def nginx_takes_what_is_written_for_it():
    nginx = needed("nginx")
    for limit in LIMITS:
        for key in KEYS:
            http, server = re.split(r"^# in server .*\n", written("nginx", "--limit", limit, "--key", key), flags=re.M)
            conf = file_of(f"pid {FOLDER.name}/nginx.pid;\nerror_log stderr;\nevents {{ }}\nhttp {{\naccess_log off;\nclient_body_temp_path {FOLDER.name}/nginx-b;\n"
                           f"proxy_temp_path {FOLDER.name}/nginx-p;\nfastcgi_temp_path {FOLDER.name}/nginx-f;\nuwsgi_temp_path {FOLDER.name}/nginx-u;\nscgi_temp_path {FOLDER.name}/nginx-s;\n"
                           f"{http}server {{\nlisten 127.0.0.1:18099;\n{server}}}\n}}\n", "nginx.conf")
            code, said = tested(nginx, "-t", "-p", FOLDER.name, "-c", conf, "-e", os.path.join(FOLDER.name, "nginx.log"))
            assert code == 0 and "[emerg]" not in said, (limit, key, said)


def nginx_gets_the_burst_less_one():
    text = written("nginx", "--limit", "10/m burst 20", "--limit", "2/s burst 1")
    assert "limit_req_zone $binary_remote_addr zone=replay1:10m rate=10r/m;" in text and "limit_req zone=replay1 burst=19 nodelay;" in text
    assert "zone=replay2:10m rate=2r/s;" in text and "limit_req zone=replay2;" in text
    assert "nginx has no rate below 1r/m" in written("nginx", "--limit", "90/2h") and "limit_req " not in written("nginx", "--limit", "9/h")


def haproxy_takes_what_is_written_for_it():
    haproxy = needed("haproxy")
    for limit in LIMITS:
        for key in KEYS:
            tables, rules = re.split(r"^# in your frontend\n", written("haproxy", "--limit", limit, "--limit", "5/m burst 7", "--key", key), flags=re.M)
            conf = file_of("defaults\n    mode http\n    timeout client 1s\n    timeout server 1s\n    timeout connect 1s\n"
                           f"{tables}frontend web\n    bind 127.0.0.1:18098\n{rules}    default_backend none\nbackend none\n", "haproxy.cfg")
            code, said = tested(haproxy, "-c", "-f", conf)
            assert code == 0 and "ALERT" not in said and "[WARNING]" not in said, (limit, key, said)


def haproxy_counts_the_burst_in_the_time_in_which_it_comes_back():
    text = written("haproxy", "--limit", "10/m burst 20")
    assert "expire 2m store http_req_rate(2m)" in text and "gt 20 }" in text
    assert "1 ms to 24 days" in written("haproxy", "--limit", "1/d burst 30") and "stick-table" not in written("haproxy", "--limit", "1/d burst 30")


def caddy_takes_what_is_written_for_it():
    caddy = needed("caddy")
    modules = tested(caddy, "list-modules")[1]
    for limit in LIMITS:
        for key in KEYS:
            text = written("caddy", "--limit", limit, "--key", key)
            block = "".join("\t" + line + "\n" for line in text.splitlines())
            conf = file_of(":18097 {\n" + block + "\trespond hello\n}\n", "Caddyfile")
            code, said = tested(caddy, "fmt", conf)
            with open(conf) as f:
                assert code in (0, 1) and said.split("{", 1)[-1].strip() == f.read().split("{", 1)[-1].strip(), (limit, said)
            if "http.handlers.rate_limit" in modules:
                code, said = tested(caddy, "validate", "--adapter", "caddyfile", "--config", conf)
                assert code == 0, (limit, said)
            else:  # Debian's Caddy is without the module: it must be all that it complains of
                code, said = tested(caddy, "adapt", "--adapter", "caddyfile", "--config", conf)
                assert "rate_limit" in said.splitlines()[-1] and re.search("unrecognized directive|not a registered|unknown directive", said.splitlines()[-1]), said
                without = file_of(re.sub(r"\trate_limit \{.*?\n\t\}\n", "", open(conf).read(), flags=re.S), "Caddyfile.without")
                code, said = tested(caddy, "validate", "--adapter", "caddyfile", "--config", without)
                assert code == 0, said
    assert "events 20\n\t\twindow 2m\n" in written("caddy", "--limit", "10/m burst 20")


def envoy_and_traefik_get_yaml_with_rate_and_burst():
    text = written("envoy", "--limit", "10/m burst 20")
    assert "{max_tokens: 20, tokens_per_fill: 1, fill_interval: 6.000000000s}" in text
    assert "tokens_per_fill: 5000, fill_interval: 0.050000000s" in written("envoy", "--limit", "100000/s burst 5")
    text = written("traefik", "--limit", "10/m burst 20", "--ip-prefix", "64")
    assert "        average: 10\n        period: 1m\n        burst: 20\n" in text and "ipv6Subnet: 64" in text
    assert "average: 3\n        period: 7s\n        burst: 11\n" in written("traefik", "--limit", "3/7s burst 11")
    try:
        import yaml
    except ImportError:
        raise Skip("no yaml for python")
    for limit in LIMITS:
        for key in KEYS:
            filters = yaml.safe_load(written("envoy", "--limit", limit, "--limit", "1/s", "--key", key))
            assert [f["name"] for f in filters] == ["replay1", "replay2"]
            config = yaml.safe_load(written("traefik", "--limit", limit, "--limit", "1/s", "--key", key))
            assert len(config["http"]["middlewares"]) == 2


def our_own_rules_are_what_the_reader_of_rules_takes():
    assert written("rules", "--limit", "10/m burst 20", "--limit", "100/h") == "replay 10/m burst 20\nreplay2 100/h\n"
    source = file_of("""#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include <stdio.h>
static unsigned char memory[100000];
int main(void)
{
    ratelimit_rules *rules;
    char text[999];
    size_t n = fread(text, 1, sizeof text, stdin);
    if (ratelimit_rules_init(&rules, memory, sizeof memory, 8 OWN) != RATELIMIT_OK)
        return 3;
    return ratelimit_rules_load(rules, text, n, NULL) != RATELIMIT_OK;
}
""", "rules.c")
    program = os.path.join(FOLDER.name, "rules")
    with open(os.path.join(ROOT, "ratelimit.h")) as f:
        own = ", 1" if "max_own" in f.read() else ""
    subprocess.run([os.environ.get("CC", "cc"), "-std=c99", "-DOWN=" + own, "-I", ROOT, source, "-o", program], check=True, stderr=subprocess.DEVNULL)
    for limit in LIMITS:
        assert subprocess.run([program], input=written("rules", "--limit", limit).encode(), timeout=10).returncode == 0, limit


def the_limit_found_can_be_written():
    found = summary("--suggest", SAMPLE_FILE)["suggested"]
    assert report("--suggest", "--as", "rules", SAMPLE_FILE) == f"replay {found}\n"


def what_cannot_be_written_is_said():
    for program in "nginx", "haproxy", "envoy", "traefik", "caddy":
        assert "unlimited: nothing to write" in written(program, "--limit", "unlimited"), program
        assert "a fixed window" in written(program, "--limit", "20/m window"), program
