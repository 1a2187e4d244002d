#!/bin/sh
# includes.sh [BUILD]  Each order of including ratelimit.h gives a program that links and runs.
#
# HEADER_DIR  the folder of the ratelimit.h to try (the project's own)
# CC, CXX     the compilers
# WORDS       only cases whose name has one of these words in it
#
# Each case is a few lines below: files that are compiled, linked together and run. A case passes if
# its program ends with 0, which it does only if all answers of use.h are right.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}/includes
rm -rf "$build" && mkdir -p "$build" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}
c="$CC -std=c99 $warnings_c -I$header -I$here"
cpp="$CXX -std=c++11 $warnings_cpp -I$header -I$here"

file() {
    cat >"$build/$1"
}

# together WHAT FILE...  A .cpp is compiled as C++, and if there is one the C++ compiler links.
together() {
    together_what=$1
    wanted "$1" || return 0
    together_linker=$CC
    together_objects=
    shift
    for together_file in "$@"; do
        together_object=$build/$together_file.o
        case $together_file in
        *.cpp) together_linker=$CXX together_compile=$cpp ;;
        *) together_compile=$c ;;
        esac
        if ! $together_compile -c "$build/$together_file" -o "$together_object" \
            >"$build/output" 2>&1; then
            fail "$together_what: $together_file does not compile" "$build/output"
            return
        fi
        together_objects="$together_objects $together_object"
    done
    if ! $together_linker $together_objects -o "$build/program" >"$build/output" 2>&1; then
        fail "$together_what: does not link" "$build/output"
        return
    fi
    run "$together_what: gives a wrong answer" limited 60 "$build/program"
}

file main.c <<'END'
int use_here(void);
int main(void)
{
    return use_here() != 0;
}
END

file alone.c <<'END'
#include "ratelimit.h"
#ifdef RATELIMIT_NO_CLOCK
#error "This is a machine with a clock."
#endif
ratelimit_limit only_declared(void);
ratelimit_limit only_declared(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, RATELIMIT_SECOND, 1);
    return limit;
}
int main(void)
{
    return only_declared().burst != 1;
}
END
together "declarations alone, nothing before and no implementation anywhere" alone.c

file declared_first.c <<'END'
#include "ratelimit.h"
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"
int use_here(void);
int use_here(void)
{
    return use_all();
}
END
together "declarations first, then the implementation" declared_first.c main.c

file twice.c <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "ratelimit.h"
#include "use.h"
int use_here(void);
int use_here(void)
{
    return use_all();
}
END
together "the implementation macro, then the header twice" twice.c main.c

file through_another.h <<'END'
#include "ratelimit.h"
static inline bool through(ratelimit_bucket *b, const ratelimit_limit *limit)
{
    return ratelimit_bucket_take(b, limit, 1, 0, NULL);
}
END
file through_another.c <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "through_another.h"
#include "ratelimit.h"
#include "use.h"
int use_here(void);
int use_here(void)
{
    ratelimit_bucket b = {0, 0};
    return use_all() + !through(&b, &use_seven);
}
END
together "the implementation through a header of the user's own" through_another.c main.c

file static_a.c <<'END'
#define RATELIMIT_STATIC
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"
int use_here(void);
int use_here(void)
{
    return use_all();
}
END
file static_b.c <<'END'
#define RATELIMIT_STATIC
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"
int use_here(void);
int main(void)
{
    return use_all() + use_here() != 0;
}
END
together "two static copies in two files" static_a.c static_b.c

file static_unused.c <<'END'
#define RATELIMIT_STATIC
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
int use_here(void);
int use_here(void)
{
    return 0;
}
END
together "a static copy of which nothing is used" static_unused.c main.c

file static_cpp.cpp <<'END'
#define RATELIMIT_STATIC
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"
int main()
{
    return use_all() != 0;
}
END
file impl.c <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
END
file plain.c <<'END'
#include "ratelimit.h"
#include "use.h"
int main(void)
{
    return use_all() != 0;
}
END
cp "$build/impl.c" "$build/impl.cpp"
cp "$build/plain.c" "$build/plain.cpp"
together "the implementation in one file, plain in another" impl.c plain.c

file between.c <<'END'
#include <stdio.h>
#include <time.h>
#include <string.h>
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"
int main(void)
{
    time_t now = time(NULL);
    return now == (time_t)-1 || use_all() != 0;
}
END
together "after <stdio.h> and <time.h> in strict C99" between.c

file posix.c <<'END'
#define _POSIX_C_SOURCE 200809L
#include <time.h>
#include <unistd.h>
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"
int main(void)
{
    struct timespec at;
    return clock_gettime(CLOCK_MONOTONIC, &at) || use_all() != 0;
}
END
together "after <time.h> with POSIX in strict C99" posix.c

file last.c <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "use.h"
int main(void)
{
    time_t now = time(NULL);
    return now == (time_t)-1 || use_all() != 0;
}
END
together "before all system headers in strict C99" last.c

if have "${CXX%% *}" g++; then
    together "the implementation in C, used from C++" impl.c plain.cpp
    together "the implementation in C++, used from C" impl.cpp plain.c
    together "the implementation in C++, used from C++" impl.cpp plain.cpp
    together "a static copy in C++, alone" static_cpp.cpp
    together "a static copy in C++ beside a plain one in C" static_cpp.cpp impl.c
fi
finish
