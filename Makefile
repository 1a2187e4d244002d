# ratelimit.h: nothing here is needed to use the header; it builds the demo, the tests and the numbers.
#
#   make demo        a C compiler and make are enough
#   make deps test   installs what the tests need (Debian's apt-get), runs everything

CC ?= cc
BUILD ?= build
CFLAGS ?= -O2 -g
WARN = -std=c99 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes \
       -Wmissing-prototypes -Wundef -Wcast-qual -Wvla -Wdouble-promotion -Werror
LIMIT ?= 10/m burst 20

# gcc-multilib itself excludes cross compilers; the package of the compiler's version does not.
PACKAGES = gcc g++ clang libclang-rt-dev afl++ clang-format python3 git tcc \
           gcc-arm-none-eabi gcc-s390x-linux-gnu libc6-dev-s390x-cross \
           gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-arm-linux-gnueabihf libc6-dev-armhf-cross \
           gcc-riscv64-linux-gnu libc6-dev-riscv64-cross gcc-mips-linux-gnu libc6-dev-mips-cross \
           gcc-powerpc-linux-gnu libc6-dev-powerpc-cross qemu-user \
           gcc-riscv64-unknown-elf qemu-system-arm qemu-system-misc gcc-avr avr-libc simavr musl-tools \
           gcc-mingw-w64-x86-64 g++-mingw-w64-x86-64 gcc-mingw-w64-i686 g++-mingw-w64-i686 \
           spin z3 lua5.4 redis-server redis-tools nutcracker libhiredis-dev libevent-dev libev-dev libuv1-dev openssl libssl-dev
EXAMPLE_PACKAGES = curl wrk pkg-config libmicrohttpd-dev libenet-dev libsqlite3-dev \
           memcached libmemcached-dev etcd-server etcd-client libcurl4-openssl-dev libinih-dev libssl-dev libcjson-dev \
           libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev \
           chromium fonts-dejavu-core nginx nginx-dev valgrind haproxy caddy zlib1g-dev
NODE_PACKAGES = @grpc/grpc-js@1 @grpc/proto-loader@0 rate-limiter-flexible ioredis
C_FILES = $(wildcard tests/*.[ch] tests/*/*.[ch] examples/*.[ch] examples/*/*.[ch] examples/*/*.cc)

.DEFAULT_GOAL := help
.PHONY: help demo deps test check one examples bench bench-redis bench-replay flood size fmt fmt-check \
        check-checks check-docs check-fuzz portability check-redis clean bench-server bench-nginx \
        check-proofs soak mutants coverage table-of-faults corpora

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{printf "%-26s %s\n", $$1, $$2}'

$(BUILD)/%: examples/%.c ratelimit.h
	@mkdir -p $(BUILD)
	$(CC) -std=c99 $(CFLAGS) -I. $< -o $@

# zlib unpacks logs if it is there; else replay runs gzip.
$(BUILD)/replay: $(wildcard examples/replay/*.[ch]) ratelimit.h
	@mkdir -p $(BUILD)
	@printf '\043include <zlib.h>\nint main(void) { return !zlibVersion(); }\n' > $(BUILD)/zlib.c; \
	zlib=; ! $(CC) $(BUILD)/zlib.c -o $(BUILD)/zlib -lz 2>/dev/null || zlib="-DREPLAY_ZLIB -lz"; \
	set -x; $(CC) -std=c99 $(CFLAGS) -I. examples/replay/*.c -o $@ $$zlib

# LOG may be several files or a pattern; OPTIONS go to replay. With --suggest or --compare there is no limit but the one
# that is given.
DEMO_LIMIT = $(if $(and $(filter file,$(origin LIMIT)),$(findstring --suggest,$(OPTIONS))$(findstring --compare,$(OPTIONS))),,--limit "$(LIMIT)")
demo: $(BUILD)/replay $(BUILD)/make_log ## replay a sample log (or LOG=access.log) under LIMIT, with OPTIONS
	@set -- $(LOG); [ $$# -gt 0 ] || { $(BUILD)/make_log > $(BUILD)/demo.log && set -- $(BUILD)/demo.log; }; \
	[ ! -e "$(LOG)" ] || set -- "$(LOG)"; \
	$(BUILD)/replay $(DEMO_LIMIT) --svg $(BUILD)/demo.svg --html $(BUILD)/demo.html $(OPTIONS) "$$@" && \
	echo "Picture: $(BUILD)/demo.svg. Page: $(BUILD)/demo.html. Your own log: make demo LOG=/var/log/nginx/access.log LIMIT=\"$(LIMIT)\""

bench-replay: $(BUILD)/replay $(BUILD)/make_log ## lines a second that replay reads, sorts and decides
	@$(BUILD)/make_log 1 3000 > $(BUILD)/bench-replay.log
	@$(BUILD)/replay --limit "$(LIMIT)" $(BUILD)/bench-replay.log | tail -n 1
	@rm $(BUILD)/bench-replay.log

# No service that comes with a package is started: policy-rc.d says no to that while packages are installed.
deps: ## install what the tests need, with apt-get
	@command -v apt-get >/dev/null || { echo "No apt-get here. Install by hand: $(PACKAGES) $(EXAMPLE_PACKAGES)"; exit 1; }
	@if [ "$$(id -u)" = 0 ]; then run=; else run=sudo; fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	policy=/usr/sbin/policy-rc.d; \
	if [ ! -e $$policy ]; then \
		trap "$$run rm -f $$policy" EXIT; \
		printf '\043!/bin/sh\nexit 101\n' | $$run tee $$policy >/dev/null; $$run chmod 755 $$policy; \
	fi; \
	get="$$run apt-get install -y -qq --no-install-recommends"; \
	$$run apt-get update -qq && $$get $(PACKAGES) $(EXAMPLE_PACKAGES) && \
	v=$$(gcc -dumpversion | cut -d. -f1) && $$get gcc-$$v-multilib g++-$$v-multilib && \
	{ ! apt-cache show wine64 >/dev/null 2>&1 || $$get wine64; } && \
	{ command -v npm >/dev/null || $$get nodejs npm; }
	@npm install --silent --no-fund --no-audit --prefix $(BUILD)/node $(NODE_PACKAGES)

test: ## everything that is tested; fails if a part is missing (SKIP_MISSING=1 counts it as skipped)
	@BUILD=$(BUILD) sh tests/run.sh all

check: ## the fast tests, with sanitizers
	@BUILD=$(BUILD) sh tests/run.sh fast

one: ## one test, sanitized: make one T=test_table [K=WORD]
	@BUILD=$(BUILD) sh tests/run.sh one $(T) $(K)

portability: ## compilers, languages, options, symbols, interface, other processors, Windows; a table (LONG=1: all tests)
	@BUILD=$(BUILD) sh tests/run.sh portability

check-redis: ## the Redis companion, on real servers
	@BUILD=$(BUILD) sh tests/run.sh redis

examples: ## build the programs in examples/ and look at each from outside; a missing package is a skip
	@BUILD=$(BUILD) SKIP_MISSING=1 sh tests/run.sh examples

check-fuzz: ## the readers of texts, fed what a fuzzer thinks of (FUZZ_SECONDS for each)
	@BUILD=$(BUILD) sh tests/run.sh fuzz

check-proofs: ## the protocol of a line searched by spin, the laws of the arithmetic proven by z3
	@BUILD=$(BUILD) sh tests/run.sh proofs

mutants: ## change one operator at a time, hours: a test must see each (SECTION=table SAMPLE=100 SEED=1 JOBS=2)
	@BUILD=$(BUILD) sh tests/run.sh mutants $(SECTION)

coverage: ## lines and branches that the tests reach, by section (REDIS=1: of the companion)
	@BUILD=$(BUILD) sh tests/run.sh coverage

$(BUILD)/table_of_faults: tests/table_of_faults.c $(wildcard tests/*.h) ratelimit.h
	@mkdir -p $(BUILD)
	$(CC) -std=c99 $(CFLAGS) -I. -Itests $< -o $@ -pthread

table-of-faults: $(BUILD)/table_of_faults ## processes, then Redis: each fault, how often, decisions meanwhile, tokens over, longest call
	@$(BUILD)/table_of_faults
	@sh tests/redis/run.sh test_table_of_faults

corpora: ## what fuzzers have found (libFuzzer and AFL++, FUZZ_SECONDS each), made small, to tests/fuzz/corpus
	@BUILD=$(BUILD) LONG=1 CORPUS=1 sh tests/run.sh fuzz

soak: ## the long forms, hours: DECISIONS (10^9) beside exact numbers, HISTORIES, all interleavings, mutants; SEED
	@BUILD=$(BUILD) sh tests/run.sh soak

check-docs: ## what README and comments say is compiled, run, declared
	@BUILD=$(BUILD) sh tests/run.sh docs

check-checks: ## plant faults in a copy of the header: each must be caught
	@BUILD=$(BUILD) sh tests/run.sh faults

bench: $(BUILD)/bench ## ns per decision beside the floor of the same work
	@$(BUILD)/bench

bench-redis: ## what decisions cost on Redis, beside a script that only returns 1
	@NODE_PATH=$${NODE_PATH:-$(abspath $(BUILD))/node/node_modules} sh tests/redis/run.sh bench

bench-server: ## decisions a second of examples/server, beside a Redis that runs the take script
	@sh tests/bench/server.sh $(BUILD)

bench-nginx: ## the nginx module beside limit_req: requests a second, memory of a key, a flood of keys
	@python3 tests/nginx/bench.py $(BUILD)

flood: $(BUILD)/flood ## what a flood of new keys does under each policy
	@$(BUILD)/flood

BENCH = -std=c99 -O2 -march=native
$(BUILD)/bench $(BUILD)/flood: $(BUILD)/%: $(wildcard tests/bench/*) tests/check.h ratelimit.h
	@mkdir -p $(BUILD)
	$(CC) $(BENCH) -DBENCH_FLAGS='"$(BENCH)"' -I. -Itests $(wildcard tests/bench/$*.c tests/bench/$*_*.c) -o $@ -pthread

size: ## bytes of code, of a bucket, of a key
	@BUILD=$(BUILD) sh tests/bench/size.sh

fmt: ## lay out all sources
	clang-format -i ratelimit.h $(C_FILES)

fmt-check: ## are they?
	clang-format --dry-run -Werror ratelimit.h $(C_FILES)

clean: ## remove what was built
	rm -rf $(BUILD)
