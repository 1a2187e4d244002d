/* bare.c - what a program needs on a chip without an operating system: a start, mem*, putchar and
 * an end. For Cortex-M (semihosting; 16 KB of RAM at 0x20000000), for the machine "virt" of RISC-V
 * as qemu knows it, and for AVR under simavr, where avr-libc has the first two. main's answer is
 * the answer of the emulator, but for simavr's, which has none. */
#include <stddef.h>
#include <stdint.h>

int main(void);
int putchar(int byte);

#if defined(__AVR__)
#  include <avr/io.h>

int putchar(int byte)
{
    UCSR0B = 1 << TXEN0;
    while (!(UCSR0A & 1 << UDRE0))
        ;
    UDR0 = (uint8_t)byte;
    return byte;
}

void exit(int code);
void exit(int code)
{
    (void)code;
    for (;;)
        __asm__ volatile("cli\n\tsleep"); /* simavr ends: nothing can wake it */
}

#else

void reset(void);
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
size_t strlen(const char *text);

void *memcpy(void *to, const void *from, size_t bytes)
{
    return memmove(to, from, bytes);
}

void *memmove(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    if (out <= in) {
        while (bytes--)
            *out++ = *in++;
    } else {
        while (bytes--)
            out[bytes] = in[bytes];
    }
    return to;
}

void *memset(void *to, int byte, size_t bytes)
{
    unsigned char *out = to;
    while (bytes--)
        *out++ = (unsigned char)byte;
    return to;
}

int memcmp(const void *a, const void *b, size_t bytes)
{
    const unsigned char *x = a, *y = b;
    for (; bytes; bytes--, x++, y++)
        if (*x != *y)
            return *x - *y;
    return 0;
}

size_t strlen(const char *text)
{
    size_t len = 0;
    while (text[len])
        len++;
    return len;
}

#  if defined(__riscv)

#    define UART   (*(volatile uint8_t *)0x10000000)
#    define FINISH (*(volatile uint32_t *)0x100000)

int putchar(int byte)
{
    UART = (uint8_t)byte;
    return byte;
}

static void leave(int code)
{
    FINISH = code ? (uint32_t)code << 16 | 0x3333 : 0x5555;
    for (;;)
        ;
}

__attribute__((aligned(4))) static void fault(void)
{
    leave(2);
}

void reset(void)
{
    __asm__ volatile(".option push\n\t.option arch, +zicsr\n\t"
                     "csrw mtvec, %0\n\t"
                     ".option pop"
                     :
                     : "r"(fault));
    leave(main());
}

__asm__(".section .vectors, \"ax\"\n\t"
        ".globl _start\n"
        "_start:\n\t"
        ".option push\n\t.option norelax\n\t"
        "la gp, __global_pointer$\n\t"
        ".option pop\n\t"
        "li sp, 0x80100000\n\t"
        "j reset\n\t"
        ".previous");

#  elif defined(__arm__)

static void semihosting(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}

int putchar(int byte)
{
    const char c = (char)byte;
    semihosting(0x03, &c);
    return byte;
}

static void leave(int code)
{
    const uint32_t block[2] = {0x20026, (uint32_t)code}; /* ADP_Stopped_ApplicationExit */
    semihosting(0x20, block);
}

static void fault(void)
{
    leave(2);
}

void reset(void)
{
    leave(main());
}

typedef struct vector_table {
    uintptr_t stack;
    void (*handler[15])(void);
} vector_table;

extern const vector_table vectors;
__attribute__((section(".vectors")))
const vector_table vectors = {0x20004000,
                              {reset, fault, fault, fault, fault, fault, fault, fault, fault, fault,
                               fault, fault, fault, fault, fault}};

#  endif
#endif
