/* main.c - a pump controller on a Cortex-M3 without an operating system: one node of its bus that
   babbles can neither block the others nor wear out the pump

   What it shows: ratelimit.h without libc, heap or clock, in 16 KiB of RAM. One static table that
   an interrupt handler and the main loop share under a lock, which switches interrupts off; the
   time from SysTick; a log line that says how much was not logged. The chip is an LM3S6965; its
   memory is in link.ld.

       Package: gcc-arm-none-eabi qemu-system-arm
       Build:   arm-none-eabi-gcc -std=c99 -Os -mcpu=cortex-m3 -mthumb -ffreestanding -nostdlib \
                    -ffunction-sections -fdata-sections -Wl,--gc-sections \
                    -fno-tree-loop-distribute-patterns -DSEMIHOSTING -I. \
                    -T examples/firmware/link.ld examples/firmware/main.c -o firmware.elf -lgcc

       qemu-system-arm -M lm3s6965evb -kernel firmware.elf -semihosting -display none \
           -monitor none -serial stdio
       arm-none-eabi-size firmware.elf

   Type lines "NODE COMMAND", for example "1 start". The commands are start and stop (the pump),
   time, count (counters), and with SEMIHOSTING quit, which ends QEMU: leave that out of a product,
   a BKPT without a debugger is a fault.

   WHERE THE LIMITS ARE
       A node's lines  in the receive interrupt, before they are queued. A node above its limit is
                       not even answered; what it can use up is its own tokens.
       A command       in the main loop, by its name, for all nodes together: a motor stands only so
                       many starts per hour, whoever asks for them.

   WHICH LOCK
       The handler and the main loop take from one table, so RATELIMIT_NO_THREADS would be wrong.
       The header's own locks, made of atomics, would be wrong too, though a Cortex-M3 has them: a
       handler that finds the line locked by the code it interrupted would wait for code that can't
       go on before the handler returns. So a decision runs with interrupts off. They come back as
       they were (PRIMASK), so that it may be called from anywhere. If only the main loop decided,
       RATELIMIT_NO_THREADS would be right and smaller. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint32_t interrupts_off(void)
{
    uint32_t before;
    __asm__ volatile("mrs %0, primask\n\tcpsid i" : "=r"(before) : : "memory");
    return before;
}

static inline void interrupts_back(uint32_t before)
{
    __asm__ volatile("msr primask, %0" : : "r"(before) : "memory");
}

static uint64_t now_ns(void);

static uint32_t interrupts; /* what was on when the decision began */
#define RATELIMIT_LOCK()   (interrupts = interrupts_off())
#define RATELIMIT_UNLOCK() interrupts_back(interrupts)
#define RATELIMIT_LOG_NOW  now_ns()
#define RATELIMIT_NO_TEXT
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h" /* which sets RATELIMIT_NO_CLOCK here by itself */

#define HZ         UINT32_C(50000000)
#define NODES      32 /* that speak within seconds of each other */
#define TEXT_BYTES 28
#define QUEUE      16 /* lines; a power of two */

/* Nodes report once in a while; ten lines at once after a power failure. */
static const ratelimit_limit node_lines = RATELIMIT_LIMIT(1, RATELIMIT_SECOND, 10);
/* What the motor's maker allows, cold. */
static const ratelimit_limit pump_starts = RATELIMIT_LIMIT(4, RATELIMIT_HOUR, 4);

/* If more nodes speak than it holds, those with the least debt are forgotten. The pump, which gets
   a token back in a quarter of an hour, is never among them. */

static unsigned char memory[RATELIMIT_TABLE_BYTES(NODES)];
static ratelimit_table *table;

typedef struct line {
    uint32_t node;
    char text[TEXT_BYTES];
} line;

/* Written by the receive interrupt only, but for queue_out and note.full. */
static line queue[QUEUE];
static volatile uint32_t queue_in, queue_out;
static struct {
    uint32_t node, missed;
    bool full;
} volatile note;
static volatile uint32_t lines, taken, refused, bad, dropped;

/* ---- the chip -------------------------------------------------------------------------------- */

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define RIS               REGISTER(0x400FE050) /* system control */
#define RCC               REGISTER(0x400FE060)
#define RCGC1             REGISTER(0x400FE104)
#define RCGC2             REGISTER(0x400FE108)
#define PORT_A(offset)    REGISTER(0x40004000 + (offset)) /* UART 0 is on pins 0 and 1 */
#define PORT_F(offset)    REGISTER(0x40025000 + (offset)) /* the pump is on pin 0, as the LED */
#define AFSEL             0x420
#define DIR               0x400
#define DEN               0x51C
#define UART_DR           REGISTER(0x4000C000)
#define UART_FR           REGISTER(0x4000C018)
#define UART_IBRD         REGISTER(0x4000C024)
#define UART_FBRD         REGISTER(0x4000C028)
#define UART_LCRH         REGISTER(0x4000C02C)
#define UART_CTL          REGISTER(0x4000C030)
#define UART_IM           REGISTER(0x4000C038)
#define RX_EMPTY          (1u << 4) /* of UART_FR */
#define TX_FULL           (1u << 5)
#define RX_AND_TIMEOUT    (1u << 4 | 1u << 6) /* of UART_IM */
#define RX_ERRORS         0xF00u              /* of UART_DR: overrun, break, parity, framing */
#define SYST_CSR          REGISTER(0xE000E010)
#define SYST_RVR          REGISTER(0xE000E014)
#define SYST_CVR          REGISTER(0xE000E018)
#define NVIC_ISER         REGISTER(0xE000E100)
#define ICSR              REGISTER(0xE000ED04)
#define AIRCR             REGISTER(0xE000ED0C)
#define TURN_PENDING      (1u << 26) /* of ICSR: SysTick's handler is still to run */

/* What the compiler calls where there is no libc. It would also make them of their own loops, but
   for -fno-tree-loop-distribute-patterns. */
void *memcpy(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    while (bytes--)
        *out++ = *in++;
    return to;
}

void *memmove(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    if (out <= in)
        return memcpy(to, from, bytes);
    while (bytes--)
        out[bytes] = in[bytes];
    return to;
}

void *memset(void *to, int byte, size_t bytes)
{
    unsigned char *out = to;
    while (bytes--)
        *out++ = (unsigned char)byte;
    return to;
}

/* 50 MHz from the 8 MHz crystal, in the order that the data sheet wants. */
static void start_clock(void)
{
    RCC = (RCC | 1u << 11) & ~(1u << 22);                             /* past the PLL, no divider */
    RCC = (RCC & ~(0xFu << 6 | 3u << 4 | 1u << 13 | 1u)) | 0xEu << 6; /* crystal; PLL on */
    RCC = (RCC & ~(0xFu << 23)) | 3u << 23 | 1u << 22;                /* 200 MHz / 4 */
    while (!(RIS & 1u << 6))
        ;
    RCC &= ~(1u << 11);
    SYST_RVR = 0xFFFFFF; /* all 24 bits, so that it wraps as a 24-bit number does */
    SYST_CVR = 0;
    SYST_CSR = 7; /* on, with its interrupt, from the core's clock */
}

static void start_pins_and_uart(void)
{
    RCGC1 |= 1u << 0;
    RCGC2 |= 1u << 0 | 1u << 5;
    (void)RCGC2; /* three cycles until the ports may be used */
    (void)RCGC2;
    PORT_A(AFSEL) |= 3;
    PORT_A(DEN) |= 3;
    PORT_F(DIR) |= 1;
    PORT_F(DEN) |= 1;
    UART_CTL = 0;
    UART_IBRD = 27; /* 115200: 50 MHz / 16 / 27.127 */
    UART_FBRD = 8;
    UART_LCRH = 0x70; /* 8 bits, FIFO */
    UART_IM = RX_AND_TIMEOUT;
    UART_CTL = 0x301;
    NVIC_ISER = 1u << 5;
}

static void pump(bool on)
{
    PORT_F(1u << 2) = on; /* the address masks all pins but pin 0 */
}

/* ---- time ------------------------------------------------------------------------------------ */

/* SysTick turns over every 0.34 s, and interrupts once per turn. That is not often enough to hand
   its 24 bits to ratelimit_tick_clock_ns: a handler that is a little later than the last time would
   find the counter where it was, and a whole turn is lost. So the handler counts turns, which makes
   the 24 bits 32; those the helper extends to 64, asked by the handler more than 200 times per turn
   of the 32. */
static uint32_t turns;
static ratelimit_tick_clock ticks;

static uint64_t now_ns(void)
{
    uint32_t before = interrupts_off();
    uint32_t low = (0u - SYST_CVR) & 0xFFFFFF, high = turns;
    uint64_t ns;
    if (ICSR & TURN_PENDING) { /* turned over, perhaps only after low was read */
        low = (0u - SYST_CVR) & 0xFFFFFF;
        high++;
    }
    ns = ratelimit_tick_clock_ns(&ticks, high << 24 | low, 32, HZ);
    interrupts_back(before);
    return ns;
}

static void systick(void)
{
    uint32_t before = interrupts_off();
    turns++;
    interrupts_back(before);
    (void)now_ns();
}

/* ---- the receive interrupt ------------------------------------------------------------------- */

static bool node_may_speak(uint32_t node)
{
    unsigned char key[5] = {0}; /* no command's name begins with a NUL, so no key means both */
    memcpy(key + 1, &node, sizeof node);
    if (ratelimit_table_take(table, key, sizeof key, &node_lines, 1, now_ns(), NULL))
        return true;
    /* The main loop prints it: an UART takes far too long for a handler. If the last note is still
       there, this one and what that one counted become its count. */
    RATELIMIT_LOG(RATELIMIT_LIMIT(1, 2 * RATELIMIT_SECOND, 1), missed, {
        note.missed = missed + (note.full ? note.missed + 1 : 0);
        note.node = node;
        note.full = true;
    });
    return false;
}

/* The number that a line begins with, and where its command does; NULL: it does not begin so. */
static const char *read_node(const char *text, uint32_t *node)
{
    const char *at = text;
    uint32_t n = 0;
    while (*at >= '0' && *at <= '9') {
        uint32_t digit = (uint32_t)(*at++ - '0');
        if (n > (UINT32_MAX - digit) / 10)
            return NULL;
        n = n * 10 + digit;
    }
    *node = n;
    return at > text && at[0] == ' ' && at[1] ? at + 1 : NULL;
}

static bool enqueue(uint32_t node, const char *text)
{
    line *to = &queue[queue_in % QUEUE];
    uint32_t i = 0;
    if (queue_in - queue_out == QUEUE)
        return false;
    to->node = node;
    do
        to->text[i] = text[i];
    while (text[i++]);
    __asm__ volatile("" : : : "memory"); /* the line before its number */
    queue_in = queue_in + 1;
    return true;
}

static void end_of_line(const char *text)
{
    uint32_t node;
    const char *command = read_node(text, &node);
    lines = lines + 1;
    if (!command)
        bad = bad + 1;
    else if (!node_may_speak(node))
        refused = refused + 1;
    else if (!enqueue(node, command))
        dropped = dropped + 1;
    else
        taken = taken + 1;
}

static void uart(void)
{
    static char text[TEXT_BYTES];
    static uint32_t len;
    static bool spoiled;
    uint32_t i;
    /* At most a FIFO of bytes, then others have their turn: SysTick first. What is left keeps the
       interrupt pending: both its reasons end by reading. */
    for (i = 0; i < 16 && !(UART_FR & RX_EMPTY); i++) {
        uint32_t byte = UART_DR;
        if (byte & RX_ERRORS)
            spoiled = true;
        else if (byte == '\n' || byte == '\r') {
            text[spoiled ? 0 : len] = 0;
            if (len || spoiled)
                end_of_line(text);
            len = 0;
            spoiled = false;
        } else if (byte < ' ' || byte > '~' || len == TEXT_BYTES - 1)
            spoiled = true;
        else
            text[len++] = (char)byte;
    }
}

/* ---- the main loop --------------------------------------------------------------------------- */

extern uint32_t stack_start[], stack_end[], data_load[], data_start[], data_end[], bss_start[],
    bss_end[]; /* of link.ld */

#define PAINT 0xA5A5A5A5u

static void put(const char *text)
{
    for (; *text; text++) {
        while (UART_FR & TX_FULL)
            ;
        UART_DR = (unsigned char)*text;
    }
}

static void put_number(uint32_t n)
{
    char text[11];
    uint32_t at = 10;
    text[10] = 0;
    do
        text[--at] = (char)('0' + n % 10);
    while (n /= 10);
    put(text + at);
}

static void put_count(const char *what, uint32_t n)
{
    put(what);
    put_number(n);
}

static void answer(uint32_t node, const char *text)
{
    put_number(node);
    put(" ");
    put(text);
}

static void start_pump(uint32_t node)
{
    pump(true);
    answer(node, "pump on\n");
}

static void stop_pump(uint32_t node)
{
    pump(false);
    answer(node, "pump off\n");
}

static void show_time(uint32_t node)
{
    answer(node, "");
    put_number((uint32_t)(now_ns() / RATELIMIT_MILLISECOND));
    put(" ms\n");
}

static void show_counts(uint32_t node)
{
    ratelimit_table_counts counts;
    const uint32_t *unused = stack_start;
    ratelimit_table_stats(table, now_ns(), &counts);
    while (*unused == PAINT)
        unused++;
    answer(node, "lines ");
    put_number(lines);
    put_count(" taken ", taken);
    put_count(" refused ", refused);
    put_count(" bad ", bad);
    put_count(" dropped ", dropped);
    put_count(" keys ", (uint32_t)counts.keys);
    put_count(" evicted ", (uint32_t)counts.evicted);
    put_count(" stack ", (uint32_t)((stack_end - unused) * 4));
    put("\n");
}

#ifdef SEMIHOSTING
/* ADP_Stopped_ApplicationExit with a code, to the debugger. */
static void leave(uint32_t code)
{
    uint32_t block[2] = {0x20026, 0};
    register uint32_t operation __asm__("r0") = 0x20;
    register uint32_t *argument __asm__("r1") = block;
    block[1] = code;
    __asm__ volatile("bkpt 0xAB" : "+r"(operation) : "r"(argument) : "memory");
}

static void quit(uint32_t node)
{
    answer(node, "bye\n");
    leave(0);
}
#endif

static const struct {
    const char *name;
    const ratelimit_limit *limit; /* NULL: none; a pump may always be stopped */
    void (*run)(uint32_t node);
} commands[] = {
    {"start", &pump_starts, start_pump},
    {"stop", NULL, stop_pump},
    {"time", NULL, show_time},
    {"count", NULL, show_counts},
#ifdef SEMIHOSTING
    {"quit", NULL, quit},
#endif
};

static bool same(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static void run(const line *of)
{
    size_t i, len = 0;
    ratelimit_result result;
    for (i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (same(of->text, commands[i].name))
            break;
    if (i == sizeof commands / sizeof commands[0]) {
        answer(of->node, "unknown command\n");
        return;
    }
    while (commands[i].name[len])
        len++;
    if (commands[i].limit && !ratelimit_table_take(table, commands[i].name, len, commands[i].limit,
                                                   1, now_ns(), &result)) {
        answer(of->node, commands[i].name);
        put_count(" refused, again in ",
                  (uint32_t)((result.retry_after_ns + RATELIMIT_SECOND - 1) / RATELIMIT_SECOND));
        put(" s\n");
        return;
    }
    commands[i].run(of->node);
}

static void show_note(void)
{
    uint32_t before = interrupts_off(), node = note.node, missed = note.missed;
    bool full = note.full;
    note.full = false;
    interrupts_back(before);
    if (!full)
        return;
    put_count("log: node ", node);
    put_count(" is over its limit (and ", missed);
    put(" not logged)\n");
}

static void main_loop(void)
{
    for (;;) {
        uint32_t before;
        show_note();
        if (queue_out != queue_in) {
            line copy = queue[queue_out % QUEUE];
            __asm__ volatile("" : : : "memory"); /* the line before its place is free */
            queue_out = queue_out + 1;
            run(&copy);
            continue;
        }
        before = interrupts_off(); /* or one between the look and the WFI would be slept through */
        if (queue_out == queue_in && !note.full)
            __asm__ volatile("wfi"); /* ends with an interrupt pending, though they are off */
        interrupts_back(before);
    }
}

/* ---- start ----------------------------------------------------------------------------------- */

static void fault(void)
{
#ifdef SEMIHOSTING
    leave(1);
#endif
    AIRCR = 0x05FA0004; /* reset */
    for (;;)
        ;
}

void reset(void);
void reset(void)
{
    uint32_t *to, *from = data_load, *here = (uint32_t *)__builtin_frame_address(0) - 16;
    ratelimit_table_options options;
    for (to = stack_start; to < here; to++)
        *to = PAINT;
    for (to = data_start; to < data_end; to++)
        *to = *from++;
    for (to = bss_start; to < bss_end; to++)
        *to = 0;
    start_clock();
    /* There is no system to ask for a seed. The nodes are our own: nobody makes numbers collide, so
     * the seed need not be secret. */
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    if (ratelimit_table_init(&table, memory, sizeof memory, &options) != RATELIMIT_OK)
        fault();
    start_pins_and_uart();
    put("ready\n");
    main_loop();
}

__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    void (*handler[21])(void);
} vectors = {stack_end,
             {reset, fault, fault, fault,   fault, fault, 0,     0,     0,     0,   fault,
              fault, 0,     fault, systick, fault, fault, fault, fault, fault, uart}};
