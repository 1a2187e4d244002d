#!/bin/sh
# cross.sh [BUILD]  Other machines.
#
# Under qemu's emulation of Linux: 64 and 32 bits, both byte orders, with and without a 64-bit
# compare-and-swap. Each gives the known answers and those of the vectors, and takes all options'
# ways; a big-endian one of 64 bits and one of 32 run more of the tests.
#
# Without an operating system or C library: ARM Cortex-M and RISC-V under qemu, AVR (16-bit int, 8-bit
# chip) under simavr. They give the known answers. Left out on AVR are texts (they would lie in its
# RAM) and all but the first 10,000 decisions.
#
# HEADER_DIR  the folder of the ratelimit.h to try (the project's own)
# LONG        1: all tests on every Linux, all known answers on AVR
# WORDS       only machines whose name has one of these words in it
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}
mkdir -p "$build" && build=$(cd "$build" && pwd)/cross
rm -rf "$build" && mkdir -p "$build" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}

# made WHAT COMMAND SOURCE...  Builds one program without a warning.
made() {
    made_what=$1
    made_command=$2
    shift 2
    rm -f "$build/program"
    $made_command -I"$header" -I"$root/tests" -I"$root" "$@" -o "$build/program" \
        >"$build/output" 2>&1 && return
    fail "$made_what: does not build" "$build/output"
    return 1
}

# ---- Linux

whole="test_limit test_reported test_table test_ticks test_text test_rules test_limiter"
longer="test_model test_tier test_cas_held test_stolen test_threads test_processes test_top"

# emulated TEST [WORD...]  A test on this machine, its long runs short (SHORT); words: what of it.
emulated() {
    emulated_test=$1
    shift
    ! made "$machine: $emulated_test" "$compile -DSHORT=1" "$root/tests/$emulated_test.c" -latomic ||
        checks "$machine: $emulated_test" limited 3600 "$emulator" "$build/program" "$@"
}

# linux MACHINE TRIPLE QEMU whole|quick  Which tests run unless all do.
linux() {
    machine=$1
    wanted "$1" || return 0
    have "$2-gcc" "gcc-$2" && have "qemu-$3" qemu-user || return
    emulator=qemu-$3
    compile="$2-gcc -std=c99 -O1 $warnings_c -static -pthread"
    # every engine but the model, which takes long and shares no code with the header
    if made "$1: options" "$compile" "$here/options.c"; then
        run "$1: options" limited 600 "$emulator" "$build/program"
    fi
    emulated known_answers
    emulated vectors bucket: shared table: limiter: cas
    if [ "$4" = whole ] || [ "${LONG:-0}" = 1 ]; then
        for test in $whole; do
            emulated "$test"
        done
    fi
    if [ "${LONG:-0}" = 1 ]; then
        for test in $longer; do
            case $1-$test in
            mips*-test_stolen | mips*-test_processes | powerpc*-test_stolen | powerpc*-test_processes)
                skip "$1: $test: without a 64-bit compare-and-swap a slow holder may undo what others charged"
                ;;
            *) emulated "$test" ;;
            esac
        done
    fi
    measured "$1" "$2-" "$2-gcc -std=c99"
}

echo 'int main(void) { short s = 1; return *(char *)&s; }' >"$build/order.c"
for big in s390x mips; do
    if have $big-linux-gnu-gcc gcc-$big-linux-gnu && have qemu-$big qemu-user; then
        run "$big: not big-endian, or does not build and run" sh -c \
            '"$1-linux-gnu-gcc" -static "$2.c" -o "$2" && "qemu-$1" "$2"' sh $big "$build/order"
    fi
done
linux "s390x, big-endian" s390x-linux-gnu s390x whole
linux "mips, big-endian" mips-linux-gnu mips whole
linux "powerpc, big-endian" powerpc-linux-gnu ppc quick
linux "aarch64" aarch64-linux-gnu aarch64 quick
linux "armv7" arm-linux-gnueabihf arm quick
linux "riscv64" riscv64-linux-gnu riscv64 quick

# ---- chips

chip_flags="-std=c99 -Os $warnings_c -ffunction-sections -fdata-sections -Wl,--gc-sections"
bare="$chip_flags -ffreestanding -nostdlib -fno-tree-loop-distribute-patterns"

# cortex CPU MACHINE
cortex() {
    wanted "$1" || return 0
    arm="arm-none-eabi-gcc -mthumb -mcpu=$1"
    run "$1 with locks of its own" $arm -std=c17 -Os -ffreestanding $warnings_c -I"$header" \
        "-DRATELIMIT_LOCK()=__asm__ volatile(\"cpsid i\" ::: \"memory\")" \
        "-DRATELIMIT_UNLOCK()=__asm__ volatile(\"cpsie i\" ::: \"memory\")" \
        -DRATELIMIT_IMPLEMENTATION -x c -c "$header/ratelimit.h" -o "$build/impl.o"
    if made "$1: known_answers" "$arm $bare -Wl,-e,vectors -Wl,--section-start=.vectors=0
        -Wl,-Ttext=0x40 -Wl,-Tbss=0x20000000" "$here/bare.c" "$root/tests/known_answers.c" -lgcc; then
        checks "$1: known_answers" limited 600 qemu-system-arm -M "$2" -semihosting \
            -display none -monitor none -serial null -kernel "$build/program"
    fi
    measured "$1" arm-none-eabi- "$arm -std=c99 -ffreestanding"
}

if have arm-none-eabi-gcc gcc-arm-none-eabi && have qemu-system-arm qemu-system-arm; then
    cortex cortex-m0 microbit
    cortex cortex-m0plus microbit # qemu has no M0+; the M0 knows all of its instructions but those
                                  # of protected memory
    cortex cortex-m3 mps2-an385
    cortex cortex-m4 mps2-an386
    cortex cortex-m7 mps2-an500
fi

if wanted rv32imac && have riscv64-unknown-elf-gcc gcc-riscv64-unknown-elf &&
    have qemu-system-riscv32 qemu-system-misc; then
    riscv="riscv64-unknown-elf-gcc -march=rv32imac -mabi=ilp32"
    if made "rv32imac: known_answers" "$riscv $bare -Wl,-N -Wl,--section-start=.vectors=0x80000000
        -Wl,-Ttext=0x80000040" "$here/bare.c" "$root/tests/known_answers.c" -lgcc; then
        checks "rv32imac: known_answers" limited 600 qemu-system-riscv32 -M virt -bios none \
            -display none -monitor none -serial stdio -kernel "$build/program"
    fi
    measured rv32imac riscv64-unknown-elf- "$riscv -std=c99 -ffreestanding"
fi

if wanted "avr atmega1284p" && have avr-gcc "gcc-avr avr-libc" && have simavr simavr; then
    answers=10000
    [ "${LONG:-0}" != 1 ] || answers=100000
    if made "avr: known_answers" "avr-gcc -mmcu=atmega1284p $chip_flags -DANSWERS=$answers
        -DRATELIMIT_NO_TEXT" "$here/bare.c" "$root/tests/known_answers.c"; then
        checks "avr: known_answers" limited 1800 simavr -m atmega1284p -f 16000000 "$build/program"
    fi
    measured "avr, 16-bit int" avr- "avr-gcc -mmcu=atmega1284p -std=c99"
fi
finish
