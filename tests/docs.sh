#!/bin/sh
# docs.sh [BUILD]  What README.md and the comments of ratelimit.h say is compiled, run and declared.
#
# Code in README.md is fenced with ```c and must compile without a warning:
#
#   a block with main()      is a program: linked, run, ends with 0 and prints something
#   another block            is the body of a function, or else stands outside of one; ratelimit.h
#                            and the C library's headers that it may need are included before it
#   <!-- given: C CODE -->   on the line above the fence stands before the block, for names that it
#                            does not declare
#
# HEADER_DIR  the folder of the ratelimit.h to look at (the project's own)
# README      the file to look at (the project's own)
# CC          the compiler
set -u
LC_ALL=C
export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
build=${1:-build}/docs
rm -rf "$build" && mkdir -p "$build" || exit 1
. "$here/portability/count.sh"
header=${HEADER_DIR:-$root}/ratelimit.h
readme=${README:-$root/README.md}
makefile=$root/Makefile
for file in "$header" "$readme" "$makefile"; do
    if [ ! -s "$file" ]; then
        fail "$file is missing"
        finish
    fi
done

# ---- code

# A program: compiled, linked (with hiredis if it asks for Redis), run.
program() {
    libraries=
    ! grep -q 'ratelimit_redis\.h' "$2" ||
        libraries="-D_POSIX_C_SOURCE=200809L -I$root -lhiredis -pthread"
    if ! $CC -std=c99 -O1 $warnings_c -I"${header%/*}" "$2" -o "$build/program" $libraries \
        >"$build/output" 2>&1; then
        fail "$1: does not compile" "$build/output"
    elif ! limited 60 "$build/program" >"$build/output" 2>&1; then
        fail "$1: does not end with 0" "$build/output"
    elif [ ! -s "$build/output" ]; then
        fail "$1: prints nothing"
    else
        pass
    fi
}

# snippet WHAT FILE GIVEN  As the body of a function, else outside of one.
snippet() {
    {
        echo '#define RATELIMIT_IMPLEMENTATION'
        echo '#include "ratelimit.h"'
        printf '#include <%s>\n' inttypes.h stdio.h stdlib.h string.h
        cat "$3"
    } >"$build/before"
    {
        cat "$build/before"
        echo 'void snippet(void);'
        echo 'void snippet(void)'
        echo '{'
        cat "$2"
        echo '}'
    } >"$build/inside.c"
    cat "$build/before" "$2" >"$build/outside.c"
    snippet_flags="-std=c99 -O1 $warnings_c -Wno-unused -Wno-missing-prototypes -I${header%/*}"
    if $CC $snippet_flags -c "$build/inside.c" -o "$build/snippet.o" >"$build/output" 2>&1 ||
        $CC $snippet_flags -c "$build/outside.c" -o "$build/snippet.o" >/dev/null 2>&1; then
        pass
    else
        fail "$1: does not compile" "$build/output"
    fi
}

# Each block of README in a file of its own, named by its line, and what is given for it.
awk -v build="$build" '
    /^```c$/ && !block {
        block = build "/block." NR ".c"
        given = build "/block." NR ".given"
        printf "" > block
        printf "%s", "" > given
        if (last ~ /^<!-- given:.*-->$/)
            print substr(last, 12, length(last) - 14) > given
        close(given)
        print NR
        next
    }
    /^```/ && block { close(block); block = ""; next }
    block { print > block }
    { last = $0 }
' "$readme" >"$build/blocks"
if [ ! -s "$build/blocks" ]; then
    fail "README.md has no block of C"
fi
while read -r line; do
    if grep -q '^int main(' "$build/block.$line.c"; then
        program "README.md:$line" "$build/block.$line.c"
    else
        snippet "README.md:$line" "$build/block.$line.c" "$build/block.$line.given"
    fi
done <"$build/blocks"
if grep -nE '^``` *(C|cpp|c\+\+|C\+\+)' "$readme" >"$build/output"; then
    fail "README.md: fence C with \`\`\`c" "$build/output"
fi

sed -n '/^   QUICK START$/,/^   WHICH CALL$/s/^       //p' "$header" >"$build/quick_start.c"
program "ratelimit.h: QUICK START" "$build/quick_start.c"
said=$(sort "$build/output" | uniq -c | awk '{ printf "%s %s %s, ", $1, $2, $3 }')
if [ "$said" = "10 come in, 2 too many, " ]; then
    pass
else
    fail "ratelimit.h: QUICK START does not let ten in and keep two out" "$build/output"
fi

# ---- names

# The header's code, its comments, and all words of its code.
awk -v code="$build/code" -v comments="$build/comments" '
    {
        line = $0
        outside = inside = ""
        while (line != "") {
            at = index(line, comment ? "*/" : "/*")
            part = at ? substr(line, 1, at - 1) : line
            if (comment)
                inside = inside part
            else
                outside = outside part
            line = at ? substr(line, at + 2) : ""
            if (at)
                comment = !comment
        }
        print outside > code
        print inside > comments
    }
' "$header"
cat "$build/code" >"$build/all_code"
for file in "$root"/ratelimit_redis.h "$root"/examples/*/*.h; do
    [ ! -e "$file" ] || cat "$file" >>"$build/all_code"
done
tr -cs 'A-Za-z0-9_' '\n' <"$build/all_code" | sort -u >"$build/declared"

# mentioned WHAT FILE  Every name of ours, and every name(), is a word of the code.
mentioned() {
    {
        sed 's/ratelimit_[a-z]*\.[hc]//g' "$2" |
            grep -oE '(ratelimit|RATELIMIT)_[A-Za-z0-9_]*[A-Za-z0-9]' |
            grep -vE '^(ratelimit_priv|RATELIMIT_PRIV)$'
        grep -oE '\b[a-z_0-9]+\(\)' "$2" | grep -vE '^(main|malloc|time)\(\)$' | tr -d '()'
    } | sort -u >"$build/mentioned"
    if [ ! -s "$build/mentioned" ]; then
        fail "$1 mentions nothing"
        return
    fi
    comm -23 "$build/mentioned" "$build/declared" >"$build/output"
    if [ -s "$build/output" ]; then
        fail "$1 mentions what is not declared" "$build/output"
    else
        pass
    fi
}
mentioned "a comment in ratelimit.h" "$build/comments"
mentioned README.md "$readme"

# Every public declaration stands under a comment that begins with its name, alone or in a list:
# "name, name  What it does."
# And every comment that begins like that stands over what it names.
awk '
    function check_head(    i) {
        for (i in head)
            if (head[i] && !(below ~ ("(^|[^A-Za-z0-9_])" i "([^A-Za-z0-9_]|$)")))
                print start ": the comment is about " i ", what stands below is not"
        split("", head)
        below = ""
    }
    /RATELIMIT_H_INCLUDED/ && /endif/ { check_head(); exit }
    /^\/\* / {
        check_head()
        start = NR
        text = substr($0, 4)
        if (match(text, /^[A-Za-z0-9_, ]*[A-Za-z0-9_]  /)) {
            text = substr(text, 1, RLENGTH - 2)
            n = split(text, word, /, */)
            for (i = 1; i <= n; i++)
                head[word[i]] = word[i] ~ /^(ratelimit|RATELIMIT)_/
        }
        comment = 1
    }
    comment { if (/\*\//) comment = 0; next }
    /^$/ { check_head() }
    { below = below " " $0 }
    /^RATELIMIT_API/ { open = "" ; reading = 1; at = NR }
    reading {
        open = open " " $0
        if (match(open, /ratelimit_[a-z0-9_]*\(/)) {
            name = substr(open, RSTART, RLENGTH - 1)
            found++
            if (!(name in head))
                print at ": " name " has no comment that begins with its name"
            reading = 0
        }
    }
    END { if (found < 20) print "only " found + 0 " public declarations found" }
' "$header" >"$build/output"
if [ -s "$build/output" ]; then
    fail "ratelimit.h: comments and declarations" "$build/output"
else
    pass
fi

# ---- what the two must agree on

version=$(sed -n 's/^ *# *define  *RATELIMIT_VERSION_TEXT  *"\([^"]*\)".*/\1/p' "$header")
number=$(echo "$version" | awk -F. 'NF == 3 { print $1 * 10000 + $2 * 100 + $3 }')
agree() {
    if [ -n "$version" ] && [ "$2" = "$version" ]; then
        pass
    else
        fail "ratelimit.h: $1 says version \"$2\", RATELIMIT_VERSION_TEXT says \"$version\""
    fi
}
defined() {
    sed -n "s/^ *# *define  *$1  *\\([0-9]*\\).*/\\1/p" "$header"
}
agree "the first line" "$(sed -n '1s/.* v\([0-9.]*\) .*/\1/p' "$header")"
sed -n '/CHANGES$/,$s/^ *\([0-9]*\.[0-9]*\.[0-9]*\) (.*/\1/p' "$header" >"$build/changes"
agree "the first entry of CHANGES" "$(sed -n 1p "$build/changes")"
if [ -n "$number" ] && [ "$(defined RATELIMIT_VERSION)" = "$number" ]; then
    pass
else
    fail "ratelimit.h: RATELIMIT_VERSION is $(defined RATELIMIT_VERSION), not $number"
fi

# README has every status. (The options are explained once, in the header.)
sed -n '/typedef enum ratelimit_status/,/^}/p' "$build/code" |
    grep -oE 'RATELIMIT_[A-Z_]+' >"$build/must"
if [ "$(wc -l <"$build/must")" -lt 17 ]; then
    fail "ratelimit.h: statuses not found" "$build/must"
fi
while read -r name; do
    if grep -qE "(^|[^A-Z_])$name([^A-Z_]|\$)" "$readme"; then
        pass
    else
        fail "README.md does not explain $name"
    fi
done <"$build/must"

# ---- README and the project

# Every target of "make X" in code, and every file that is linked to.
awk '
    /^```/ { block = !block; next }
    block { print; next }
    { n = split($0, part, "`"); for (i = 2; i <= n; i += 2) print part[i] }
' "$readme" | grep -E '^(\$ )?make( |$)' | sed 's/^\$ //; s/#.*//; s/"[^"]*"//g' | tr ' ' '\n' |
    grep -E '^[a-z][a-z-]*$' | grep -vx make | sort -u >"$build/targets"
if [ ! -s "$build/targets" ]; then
    fail "README.md names no make target"
fi
while read -r target; do
    if grep -qE "^([a-z -]* )?$target( [a-z -]*)?:" "$makefile"; then
        pass
    else
        fail "README.md names \"make $target\", the Makefile has no such target"
    fi
done <"$build/targets"
grep -oE '\]\([^)#]+' "$readme" | sed 's/^](//' | grep -v '://' | sort -u >"$build/links"
while read -r link; do
    if [ -e "$root/$link" ]; then
        pass
    else
        fail "README.md links to $link, which is not there"
    fi
done <"$build/links"
if grep -n '@@' "$readme" >"$build/output"; then
    fail "README.md has places still to be filled" "$build/output"
else
    pass
fi

for file in "$header" "$root"/ratelimit_redis.h "$root"/tests/*.[ch] "$root"/tests/*/*.[ch] \
    "$root"/examples/*.[ch] "$root"/examples/*/*.[ch] "$root"/examples/*/*.cc; do
    [ -e "$file" ] || continue
    awk 'length($0) > 100 { print NR ": " length($0) " columns" }' "$file" >"$build/output"
    if [ -s "$build/output" ]; then
        name=${file#"$root"/}
        [ "$file" = "$header" ] && name=ratelimit.h
        fail "$name has lines above 100 columns" "$build/output"
    else
        pass
    fi
done
finish
