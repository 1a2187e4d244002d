#!/bin/bash
# Builds the module for the nginx of Debian's package, from its package nginx-dev, into a folder: build.sh DIR
# CFLAGS: more options for the compiler, after those of nginx.
set -e
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: build.sh DIR}"
out=$(cd "$1" && pwd)
cd /usr/share/nginx/src
. ./conf_flags
./configure "${NGX_CONF_FLAGS[@]}" --with-cc-opt="-O2 -g -fPIC" --with-ld-opt=-fPIC \
    --add-dynamic-module="$here" --builddir="$out" >"$out/configure.log"
# nginx's own headers give warnings under stricter options than its own: as system headers they do not.
system=
for folder in core event event/modules event/quic os/unix http http/modules http/v2; do
    system="$system -isystem src/$folder"
done
make --silent -f "$out/Makefile" CFLAGS="$(sed -n 's/^CFLAGS = *//p' "$out/Makefile") -std=c99$system $CFLAGS" \
    modules
