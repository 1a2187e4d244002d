#!/bin/sh
# Builds the tests of ratelimit_redis.h and runs them against servers of its own: one, and a cluster of three masters
# with a replica each, on private ports of the loopback, in a temporary folder. All end with it.
#
# Usage: tests/redis/run.sh [NAME...]     NAME: vectors_redis, test_store, test_cluster ...; none: all
# Ends with "N passed, N failed" (", N skipped"). SKIP_MISSING=1: if a program or header is missing, that is a skip.
# HIREDIS: a folder with another hiredis (HIREDIS/hiredis/hiredis.h, HIREDIS/libhiredis.a); with HIREDIS/libhiredis_ssl.a
# TLS is tested, too (Debian's 0.14.1 has none: a skip).
# CC, CFLAGS: compiler, and its flags instead of those with sanitizers. SEED: see check.h.
set -u
cd "$(dirname "$0")/../.." || exit 1
CC=${CC:-gcc}
CFLAGS=${CFLAGS:--O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all}
WARN="-std=c99 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes
      -Wmissing-prototypes -Wundef -Wcast-qual -Wvla -Wdouble-promotion -Werror"
ALL="vectors_redis test_store test_locks test_tls test_cluster"
CLUSTER_TESTS="test_cluster"
HIREDIS=${HIREDIS:-}
[ -z "$HIREDIS" ] || CFLAGS="$CFLAGS -isystem $HIREDIS -L$HIREDIS"
passed=0 failed=0 skipped=0 pids=
dir=$(mktemp -d) || exit 1

sum() {
    if [ "$skipped" -ne 0 ]; then
        echo "$passed passed, $failed failed, $skipped skipped"
    else
        echo "$passed passed, $failed failed"
    fi
    [ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
}

clean() {
    for pid in $pids; do
        kill -CONT "$pid" 2>/dev/null
        kill -KILL "$pid" 2>/dev/null
    done
    wait 2>/dev/null
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP

missing() { # what, package
    if [ -n "${SKIP_MISSING:-}" ]; then
        echo "skipped: redis: $1 is missing (Debian package $2)"
        skipped=$((skipped + 1))
    else
        echo "FAILED: redis: $1 is missing (Debian package $2)"
        failed=$((failed + 1))
    fi
    sum
    exit
}

command -v redis-server >/dev/null 2>&1 || missing redis-server redis-server
command -v redis-cli >/dev/null 2>&1 || missing redis-cli redis-tools
echo '#include <hiredis/hiredis.h>
int main(void) { redisFree(NULL); return 0; }' >"$dir/probe.c"
$CC $CFLAGS "$dir/probe.c" -o "$dir/probe" -lhiredis 2>/dev/null || missing hiredis libhiredis-dev

answers() { # port: true when it does, within 5 s, while its process lives
    for _ in $(seq 100); do
        [ "$(redis-cli -p "$1" ping 2>/dev/null)" = PONG ] && return 0
        kill -0 "$2" 2>/dev/null || return 1
        sleep 0.05
    done
    return 1
}

# start ARGS...: a server on the next free port, in $port and $pid
next=$((20000 + $$ % 9000))
start() {
    for _ in $(seq 50); do
        next=$((next + 1))
        port=$next
        [ "$(redis-cli -p "$port" ping 2>&1 | grep -c refused)" = 1 ] || continue
        mkdir -p "$dir/$port"
        redis-server --port "$port" --bind 127.0.0.1 --dir "$dir/$port" --save "" --appendonly no \
            --logfile "$dir/$port/log" --daemonize no "$@" >/dev/null 2>&1 </dev/null &
        pid=$!
        pids="$pids $pid"
        answers "$port" "$pid" && return 0
    done
    echo "FAILED: redis: no server would start"
    failed=$((failed + 1))
    sum
    exit 1
}

start_cluster() {
    CLUSTER_PORTS= CLUSTER_PIDS= nodes=
    for _ in 1 2 3 4 5 6; do
        start --cluster-enabled yes --cluster-node-timeout 500 --cluster-config-file nodes.conf \
            --repl-diskless-sync-delay 0 --repl-ping-replica-period 1
        CLUSTER_PORTS="$CLUSTER_PORTS $port" CLUSTER_PIDS="$CLUSTER_PIDS $pid" nodes="$nodes 127.0.0.1:$port"
    done
    export CLUSTER_PORTS CLUSTER_PIDS
    timeout 20 redis-cli --cluster create $nodes --cluster-replicas 1 --cluster-yes >"$dir/create" 2>&1 </dev/null
    for node in $CLUSTER_PORTS; do
        for _ in $(seq 200); do
            redis-cli -p "$node" cluster info | grep -q cluster_state:ok &&
                [ "$(redis-cli -p "$node" cluster nodes | grep -c slave)" = 3 ] && break
            sleep 0.05
        done
    done
    redis-cli -p "$port" cluster info | grep -q cluster_state:ok && return 0
    cat "$dir/create"
    echo "FAILED: redis: the cluster would not form"
    failed=$((failed + 1))
    return 1
}

# A second server with TLS beside its plain port, and certificates of our own.
start_tls() {
    ssl() { openssl "$@" >/dev/null 2>&1; }
    for name in ca other; do
        ssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$name" -keyout "$dir/$name.key" -out "$dir/$name.crt"
    done
    ssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout "$dir/server.key" -out "$dir/server.csr"
    ssl x509 -req -days 2 -in "$dir/server.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -CAcreateserial -out "$dir/server.crt" || return 1
    next=$((next + 1))
    TLS_PORT=$next TLS_FOLDER=$dir
    export TLS_PORT TLS_FOLDER
    redis-cli -p "$REDIS_PORT" config set tls-cert-file "$dir/server.crt" tls-key-file "$dir/server.key" \
        tls-ca-cert-file "$dir/ca.crt" tls-auth-clients no tls-port "$TLS_PORT" | grep -q OK
}

run() { # a program
    libs=
    if [ "$1" = test_tls ]; then
        if [ ! -f "${HIREDIS:-/usr/include}/hiredis/hiredis_ssl.h" ] || ! command -v openssl >/dev/null; then
            echo "skipped: test_tls: this hiredis has no TLS (1.0 or later), or openssl is missing (package openssl)"
            skipped=$((skipped + 1))
            return
        fi
        start_tls || {
            echo "FAILED: test_tls: no server with TLS would start"
            failed=$((failed + 1))
            return
        }
        libs="-lhiredis_ssl -lhiredis -lssl -lcrypto"
    fi
    $CC $WARN $CFLAGS -I. -Itests -Itests/redis "tests/redis/$1.c" -o "$dir/$1" $libs -lhiredis -pthread >"$dir/out" 2>&1 || {
        head -n 30 "$dir/out"
        echo "FAILED: $1 does not compile"
        failed=$((failed + 1))
        return
    }
    begin=$(date +%s)
    timeout -k 5 120 "$dir/$1" >"$dir/out" 2>&1 </dev/null
    code=$?
    line=$(tail -n 1 "$dir/out" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)\{0,1\}$/\1 \2 \4/p')
    if [ -z "$line" ]; then
        tail -n 40 "$dir/out"
        echo "FAILED: $1 ended with code $code and no count"
        failed=$((failed + 1))
        return
    fi
    grep -v 'passed, ' "$dir/out" | grep -E 'FAILED|skipped|SEED|failover|^  ' | head -n 60
    name=$1
    set -- $line
    if [ "$code" -ne 0 ] && [ "$2" -eq 0 ]; then
        echo "FAILED: $name says it passed, but ended with code $code"
        failed=$((failed + 1))
    fi
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + ${3:-0}))
    echo "$name: $1 passed, $2 failed, ${3:-0} skipped, $(($(date +%s) - begin)) s"
}

start --unixsocket "$dir/socket" --enable-debug-command yes
REDIS_PORT=$port REDIS_PID=$pid REDIS_SOCKET=$dir/socket
export REDIS_PORT REDIS_PID REDIS_SOCKET
formed=
for test in ${*:-$ALL}; do
    case " $CLUSTER_TESTS " in *" $test "*)
        [ -n "$formed" ] || start_cluster || continue
        formed=1
        ;;
    esac
    run "$test"
done
sum
