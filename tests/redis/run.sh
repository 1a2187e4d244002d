#!/bin/sh
# Builds the tests of ratelimit_redis.h and runs them against servers of its own: one, and a cluster of three masters
# with a replica each, on private ports of the loopback, in a temporary folder. All end with it.
#
# Usage: tests/redis/run.sh [NAME...]     NAME: vectors_redis, test_store, test_cluster ...; none: all
#        tests/redis/run.sh bench [ROUNDS|faults]  prints what decisions cost; no tests. faults: only what they cost
#                                             when something goes wrong. NODE_PATH: where
#                                             rate-limiter-flexible and ioredis are, to measure them, too
#        tests/redis/run.sh faults [WORD...]  plants the faults of faults.txt: each must be caught
#        tests/redis/run.sh with COMMAND...   runs a command while servers, a cluster, a pair and TLS are there
# Ends with "N passed, N failed" (", N skipped"). SKIP_MISSING=1: if a program or header is missing, that is a skip.
# HIREDIS: a folder with another hiredis (HIREDIS/hiredis/hiredis.h, HIREDIS/libhiredis.a).
# CC, CFLAGS: compiler, and its flags instead of those with sanitizers. SEED: see check.h. WORDS: run only the tests whose
# name has one of these.
set -u
cd "$(dirname "$0")/../.." || exit 1
CC=${CC:-gcc}
CFLAGS=${CFLAGS:--O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all}
WARN="-std=c99 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes
      -Wmissing-prototypes -Wundef -Wcast-qual -Wvla -Wdouble-promotion -Werror"
ALL="builds scripts vectors_redis test_store test_failures test_table_of_faults test_shards test_locks test_deployments test_tls test_replies test_async test_async_ev test_async_uv test_async_tls test_memory test_memory_tls test_cluster"
CLUSTER_TESTS="test_replies test_memory test_async test_async_ev test_async_uv test_async_tls test_cluster"
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

ok() { # sentence, command...
    said=$1
    shift
    if "$@" >"$dir/out" 2>&1; then
        passed=$((passed + 1))
    else
        head -n 20 "$dir/out"
        echo "FAILED: $said"
        failed=$((failed + 1))
    fi
}

says() { # text, command...: the command fails and says it
    text=$1
    shift
    "$@" >"$dir/said" 2>&1 && return 1
    grep -q "$text" "$dir/said"
}

builds() { # languages, orders, options, what is said when something is missing
    both='#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION'
    posix='#define _POSIX_C_SOURCE 200809L'
    main='int main(void) {
    char why[256]; /* as long as its comment asks for */
    return ratelimit_redis_error(ratelimit_redis_open(NULL, NULL), why, sizeof why)[0];
}'
    cc="$CC $WARN -I. ${HIREDIS:+-isystem $HIREDIS}"
    cxx="$(echo "$WARN" | sed 's/-std=c99/-std=c++11/; s/-Wstrict-prototypes//; s/-Wmissing-prototypes//')"
    cxx="${CXX:-g++} $cxx -Wold-style-cast -I. ${HIREDIS:+-isystem $HIREDIS}"
    libs="${HIREDIS:+-L$HIREDIS} -lhiredis -pthread"
    write() { # name, lines
        printf '%s\n' "$2" >"$dir/$1"
    }
    write one.c "$posix
$both
#include \"ratelimit_redis.h\"
$main"
    write split.c "$posix
#define RATELIMIT_IMPLEMENTATION
#include \"ratelimit.h\"
#define RATELIMIT_REDIS_IMPLEMENTATION
#include \"ratelimit_redis.h\"
$main"
    write late.c "$posix
#include \"ratelimit_redis.h\"
#include \"ratelimit.h\"
#include \"ratelimit_redis.h\"
$both
#include \"ratelimit.h\"
#include \"ratelimit_redis.h\"
#include \"ratelimit_redis.h\"
$main"
    write plain.c "#include \"ratelimit_redis.h\"
ratelimit_redis *plain(void);
ratelimit_redis *plain(void) { return ratelimit_redis_open(NULL, NULL); }"
    write alone.c "$posix
#define RATELIMIT_REDIS_IMPLEMENTATION
#include \"ratelimit_redis.h\""
    write strict.c "$both
#include \"ratelimit_redis.h\""
    write no_clock.c "$posix
#define RATELIMIT_NO_CLOCK
$both
#include \"ratelimit_redis.h\""
    { echo "$posix" && awk '/^   QUICK START$/ {on = 1; next} /^   WHEN TO USE IT/ {on = 0} on' ratelimit_redis.h; } >"$dir/quick.c"
    cp "$dir/one.c" "$dir/one.cpp"
    cp "$dir/plain.c" "$dir/plain.cpp"
    cp "$dir/quick.c" "$dir/quick.cpp"
    ok "it builds as C99" $cc -O2 "$dir/one.c" "$dir/plain.c" -o "$dir/a" $libs
    ok "it builds with the keeper thread" $cc -DRATELIMIT_REDIS_KEEPER -O2 "$dir/one.c" -o "$dir/a" $libs
    ok "it builds with the asynchronous form" $cc -DRATELIMIT_REDIS_ASYNC -O2 "$dir/one.c" "$dir/plain.c" -o "$dir/a" $libs
    tls="-DRATELIMIT_REDIS_TLS -DRATELIMIT_REDIS_ASYNC -O2"
    tls_libs="$libs -lssl -lcrypto"
    [ -f /usr/include/openssl/ssl.h ] || tls=
    [ -z "$tls" ] || ok "it builds with TLS" $cc $tls "$dir/one.c" -o "$dir/a" $tls_libs
    ok "it builds static" $cc -DRATELIMIT_STATIC -O2 "$dir/one.c" -o "$dir/a" $libs
    ok "both implementations may be in separate includes" $cc "$dir/split.c" -o "$dir/a" $libs
    ok "the headers may be included first and often" $cc "$dir/late.c" -o "$dir/a" $libs
    ok "the quick start builds" $cc "$dir/quick.c" -o "$dir/a" $libs
    ok "it says that it needs RATELIMIT_IMPLEMENTATION" says "needs RATELIMIT_IMPLEMENTATION" $cc -c "$dir/alone.c" -o "$dir/a"
    ok "it says that strict C99 needs _POSIX_C_SOURCE" says "_POSIX_C_SOURCE" $cc -c "$dir/strict.c" -o "$dir/a"
    ok "it says that it needs a clock" says "needs a clock" $cc -c "$dir/no_clock.c" -o "$dir/a"
    mkdir -p "$dir/gone"
    cp ratelimit.h "$dir/gone/"
    sed 's,<hiredis/hiredis,<hiredis_is_gone/hiredis,' ratelimit_redis.h >"$dir/gone/ratelimit_redis.h"
    ok "it says that hiredis is missing, and its package" says "libhiredis-dev" $CC -std=c99 -I"$dir/gone" -c "$dir/one.c" -o "$dir/a"
    sed 's,REDIS_VERSION 10000,REDIS_VERSION 10001,' ratelimit_redis.h >"$dir/gone/ratelimit_redis.h"
    ok "it says that the headers are of different versions" says "different versions" $CC -std=c99 -I"$dir/gone" -c "$dir/one.c" -o "$dir/a"
    if command -v "${CXX:-g++}" >/dev/null; then
        ok "it builds as C++11" $cxx "$dir/one.cpp" "$dir/plain.cpp" -o "$dir/a" $libs
        ok "it builds as C++11 with the asynchronous form" $cxx -DRATELIMIT_REDIS_ASYNC -O2 "$dir/one.cpp" "$dir/plain.cpp" -o "$dir/a" $libs
        [ -z "$tls" ] || ok "it builds as C++11 with TLS" $cxx $tls "$dir/one.cpp" -o "$dir/a" $tls_libs
        ok "it builds as C++11 with the keeper thread" $cxx -DRATELIMIT_REDIS_KEEPER -O2 "$dir/one.cpp" -o "$dir/a" $libs
    elif [ -n "${SKIP_MISSING:-}" ]; then
        echo "skipped: builds as C++: g++ is missing (Debian package g++)"
        skipped=$((skipped + 3))
    else
        echo "FAILED: builds as C++: g++ is missing (Debian package g++)"
        failed=$((failed + 1))
    fi
}

scripts() { # every script in Lua 5.4, which tells floats from integers
    if ! command -v lua5.4 >/dev/null; then
        if [ -n "${SKIP_MISSING:-}" ]; then
            echo "skipped: scripts: lua5.4 is missing (Debian package lua5.4)"
            skipped=$((skipped + 1))
        else
            echo "FAILED: scripts: lua5.4 is missing (Debian package lua5.4)"
            failed=$((failed + 1))
        fi
        return
    fi
    cat >"$dir/print.c" <<'END'
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"
int main(void)
{
    unsigned i;
    for (i = 0; i < RATELIMIT_PRIV_REDIS_SCRIPTS; i++)
        printf("%s%c", ratelimit_priv_redis_script[i], 0);
    return 0;
}
END
    $CC -std=c99 -w -I. ${HIREDIS:+-isystem $HIREDIS -L$HIREDIS} "$dir/print.c" -o "$dir/print" -lhiredis -pthread &&
        "$dir/print" >"$dir/scripts"
    ok "scripts give whole numbers also in Lua 5.4" lua5.4 tests/redis/scripts.lua "$dir/scripts"
}

# The server's second port, for TLS, and certificates of our own.
start_tls() {
    [ -z "${TLS_PORT:-}" ] || return 0
    ssl() { openssl "$@" >/dev/null 2>&1; }
    for name in ca other; do
        ssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$name" -keyout "$dir/$name.key" -out "$dir/$name.crt"
    done
    ssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout "$dir/server.key" -out "$dir/server.csr"
    echo "subjectAltName=DNS:redis.test,DNS:*.shard.test,IP:127.0.0.1" >"$dir/names"
    ssl x509 -req -days 2 -in "$dir/server.csr" -extfile "$dir/names" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" \
        -CAcreateserial -out "$dir/server.crt" || return 1
    next=$((next + 1))
    TLS_PORT=$next TLS_FOLDER=$dir
    export TLS_PORT TLS_FOLDER
    redis-cli -p "$REDIS_PORT" config set tls-cert-file "$dir/server.crt" tls-key-file "$dir/server.key" \
        tls-ca-cert-file "$dir/ca.crt" tls-auth-clients no tls-port "$TLS_PORT" | grep -q OK
}

# twemproxy before two servers, to each of which it sends the keys that are its own; and a cluster of one node, which
# takes no command with keys of several slots.
start_shards() {
    start
    SHARD_PORTS=$port SHARD_PIDS=$pid
    start
    SHARD_PORTS="$SHARD_PORTS $port" SHARD_PIDS="$SHARD_PIDS $pid"
    start --cluster-enabled yes --cluster-config-file nodes.conf
    SLOTS_PORT=$port
    redis-cli -p "$port" cluster addslots $(seq 0 16383) >/dev/null
    next=$((next + 1))
    SHARDS_PORT=$next
    export SHARD_PORTS SHARD_PIDS SLOTS_PORT SHARDS_PORT
    cat >"$dir/nutcracker.yml" <<END
shards:
  listen: 127.0.0.1:$SHARDS_PORT
  redis: true
  hash: murmur
  distribution: ketama
  hash_tag: "{}"
  auto_eject_hosts: false
  timeout: 2000
  servers:
$(for each in $SHARD_PORTS; do echo "   - 127.0.0.1:$each:1"; done)
END
    next=$((next + 1))
    nutcracker -c "$dir/nutcracker.yml" -a 127.0.0.1 -s "$next" -p "$dir/nutcracker.pid" -o "$dir/nutcracker.log" \
        >/dev/null 2>&1 </dev/null &
    pids="$pids $!"
    answers "$SHARDS_PORT" "$!"
}

# A master and its replica.
start_pair() {
    start
    MASTER_PORT=$port
    start --replicaof 127.0.0.1 "$MASTER_PORT"
    REPLICA_PORT=$port REPLICA_PID=$pid
    export MASTER_PORT REPLICA_PORT REPLICA_PID
    for _ in $(seq 200); do
        redis-cli -p "$MASTER_PORT" info replication | grep -q 'state=online' && return 0
        sleep 0.05
    done
    return 1
}

loop_of() { # a test: its event loop's library
    case $1 in
    test_async | test_async_tls) echo -levent ;;
    test_async_ev) echo -lev ;;
    test_async_uv) echo -luv ;;
    esac
}

run() { # a program
    libs=$(loop_of "$1")
    case $libs in
    -levent) set -- "$1" event2/event.h libevent-dev ;;
    -lev) set -- "$1" ev.h libev-dev ;;
    -luv) set -- "$1" uv.h libuv1-dev ;;
    esac
    if [ -n "$libs" ] && ! echo "#include <$2>" | $CC -E - >/dev/null 2>&1; then
        if [ -n "${SKIP_MISSING:-}" ]; then
            echo "skipped: $1: $2 is missing (Debian package $3)"
            skipped=$((skipped + 1))
        else
            echo "FAILED: $1: $2 is missing (Debian package $3)"
            failed=$((failed + 1))
        fi
        return
    fi
    case $1 in *_tls)
        if [ ! -f /usr/include/openssl/ssl.h ] || ! command -v openssl >/dev/null; then
            if [ -n "${SKIP_MISSING:-}" ]; then
                echo "skipped: $1: OpenSSL is missing (Debian packages openssl, libssl-dev)"
                skipped=$((skipped + 1))
            else
                echo "FAILED: $1: OpenSSL is missing (Debian packages openssl, libssl-dev)"
                failed=$((failed + 1))
            fi
            return
        fi
        start_tls || {
            echo "FAILED: $1: no server with TLS would start"
            failed=$((failed + 1))
            return
        }
        libs="$libs -lssl -lcrypto"
        ;;
    esac
    if [ "$1" = test_shards ] && [ -z "${SHARDS_PORT:-}" ]; then
        if ! command -v nutcracker >/dev/null && [ -n "${SKIP_MISSING:-}" ]; then
            echo "skipped: $1: nutcracker is missing (Debian package nutcracker)"
            skipped=$((skipped + 1))
            return
        fi
        start_shards || {
            echo "FAILED: $1: nutcracker (Debian package nutcracker) would not start"
            failed=$((failed + 1))
            return
        }
    fi
    if [ "$1" = test_locks ] && [ -z "${REPLICA_PORT:-}" ] && ! start_pair; then
        echo "FAILED: $1: no replica would start"
        failed=$((failed + 1))
        return
    fi
    $CC $WARN $CFLAGS -I. -Itests -Itests/redis "tests/redis/$1.c" -o "$dir/$1" $libs -lhiredis -pthread >"$dir/out" 2>&1 || {
        head -n 30 "$dir/out"
        echo "FAILED: $1 does not compile"
        failed=$((failed + 1))
        return
    }
    begin=$(date +%s)
    timeout -k 5 1200 "$dir/$1" ${WORDS:-} >"$dir/out" 2>&1 </dev/null
    code=$?
    [ "$code" -ne 124 ] || echo "time limit of 1200 s" >>"$dir/out"
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

case $(redis-server --version) in
*v=[56].*) debug= ;; # DEBUG needs no permission there
*) debug="--enable-debug-command yes" ;;
esac
start --unixsocket "$dir/socket" $debug
REDIS_PORT=$port REDIS_PID=$pid REDIS_SOCKET=$dir/socket
export REDIS_PORT REDIS_PID REDIS_SOCKET
bench_build() { # a program
    $CC -std=c99 -O2 ${HIREDIS:+-isystem $HIREDIS -L$HIREDIS} -I. -Itests -Itests/redis "tests/redis/$1.c" \
        -o "$dir/$1" -lhiredis -pthread
}

if [ "${1:-}" = bench ]; then
    bench_build bench_redis && bench_build bench_faults && bench_build test_cluster || exit 1
    if [ "${2:-}" != faults ]; then
        pin=
        if command -v taskset >/dev/null && [ "$(nproc)" -gt 1 ]; then # server and client on a processor each
            taskset -cp 0 "$REDIS_PID" >/dev/null
            pin="taskset -c 1"
        fi
        if [ -n "${NODE_PATH:-}" ] && command -v node >/dev/null; then
            NODE_BENCH="exec node tests/redis/bench_node.js"
            export NODE_BENCH
        fi
        $pin timeout 120 "$dir/bench_redis" "${2:-21}" || exit
        start_cluster || exit 1
        echo "a cluster under load, one of three masters killed (node timeout 500 ms):"
        timeout 60 "$dir/test_cluster" killed_under_load | sed -n 's/^failover:/   /p'
    fi
    echo "when something goes wrong:"
    start_cluster && timeout 200 "$dir/bench_faults" | sed 's/^/    /'
    exit
fi
# plant NAME TEST WORDS...: true if the test fails with that fault in the header, and not without it
plant() {
    name=$1 test=$2
    shift 2
    mkdir -p "$dir/fault"
    cp ratelimit.h "$dir/fault/"
    "$dir/plant" tests/redis/faults.txt "$name" ratelimit_redis.h >"$dir/fault/ratelimit_redis.h" || return 1
    for tree in . "$dir/fault"; do
        $CC -std=c99 -O0 -w -I"$tree" -Itests -Itests/redis "tests/redis/$test.c" -o "$dir/$test" $(loop_of "$test") -lhiredis -pthread || return 1
        timeout -k 5 60 "$dir/$test" "$@" >"$dir/out" 2>&1 </dev/null
        code=$?
        if [ "$tree" = . ] && [ "$code" -ne 0 ]; then
            echo "  $test $* fails without a fault"
            return 1
        fi
        kill -CONT "$REDIS_PID" $CLUSTER_PIDS
    done
    [ "$code" -ne 0 ]
}

if [ "${1:-}" = faults ]; then
    shift
    DECISIONS=5000
    export DECISIONS
    $CC -std=c99 -O1 tests/faults/plant.c -o "$dir/plant" || exit 1
    start_cluster && start_shards && start_pair || exit 1
    "$dir/plant" tests/redis/faults.txt >"$dir/faults" || exit 1
    while read -r name test words; do
        wanted=$(($# == 0))
        for word in "$@"; do
            case $name in *"$word"*) wanted=1 ;; esac
        done
        [ "$wanted" = 1 ] || continue
        if [ "$test" = test_cluster ] && [ "${name#cluster_down}" != "$name" ]; then
            start_cluster || exit 1 # it is killed by this test
        fi
        if plant "$name" "$test" $words </dev/null; then
            passed=$((passed + 1))
        else
            echo "FAILED: $name is not caught by $test $words"
            failed=$((failed + 1))
        fi
        case $words in *killed*) start_cluster || exit 1 ;; esac # one of its masters is dead now
    done <"$dir/faults"
    sum
    exit
fi
if [ "${1:-}" = with ]; then
    shift
    start_cluster && start_shards && start_pair && start_tls || exit 1
    "$@"
    exit
fi
formed=
for test in ${*:-$ALL}; do
    case " $CLUSTER_TESTS " in *" $test "*)
        [ -n "$formed" ] || start_cluster || continue
        formed=1
        ;;
    esac
    case $test in
    builds) builds ;;
    scripts) scripts ;;
    *) run "$test" ;;
    esac
done
sum
