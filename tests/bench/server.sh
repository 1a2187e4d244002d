#!/bin/sh
# server.sh - starts examples/server and a Redis on ports of their own and measures both: see server_load.c.
#
#     sh tests/bench/server.sh BUILD [ROUNDS]
set -eu
cd "$(dirname "$0")/../.."
build=$1
CC=${CC:-cc}
mkdir -p "$build"
dir=$(mktemp -d)
pids=
clean() {
    for pid in $pids; do kill "$pid" 2>/dev/null || :; done
    wait 2>/dev/null || :
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
for program in redis-server redis-cli; do
    command -v $program >/dev/null || { echo "$program is missing: make deps"; exit 1; }
done
$CC -std=c99 -O2 -I. examples/server/[a-z]*.c -o "$dir/ratelimit_server" -levent_core
$CC -std=c99 -O3 -I. tests/bench/server_load.c -o "$dir/server_load" -lhiredis -pthread

# start COMMAND...: on a free port, PORT in its words, which is then in $port
next=$((20000 + $$ % 9000))
start() {
    for _ in $(seq 50); do
        next=$((next + 1))
        port=$next
        redis-cli -p $port ping 2>&1 | grep -q refused || continue
        "$@" >"$dir/log" 2>&1 </dev/null &
        pid=$!
        for _ in $(seq 100); do
            [ "$(redis-cli -p $port ping 2>/dev/null)" = PONG ] && pids="$pids $pid" && return 0
            kill -0 $pid 2>/dev/null || break
            sleep 0.05
        done
        kill $pid 2>/dev/null || :
    done
    cat "$dir/log"
    exit 1
}
ours() { exec "$dir/ratelimit_server" --listen "127.0.0.1:$port"; }
redis() { exec redis-server --port "$port" --bind 127.0.0.1 --save "" --appendonly no --dir "$dir"; }
start ours
server_port=$port server_pid=$pid
start redis
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1); $(redis-server --version | cut -d ' ' -f 3)"
timeout 300 "$dir/server_load" $server_port $server_pid $port $pid ${2:-7}
