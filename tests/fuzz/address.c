/* Texts of addresses, against the C library's own reading; keys made of them. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "fuzz.h"

#include <arpa/inet.h>

const char *const fuzz_seeds[] = {"192.0.2.1",
                                  "255.255.255.255",
                                  "2001:db8::1",
                                  "::",
                                  "::ffff:192.0.2.1",
                                  "1:2:3:4:5:6:7:8",
                                  "1:2:3:4:5:6:7::",
                                  "::2:3:4:5:6:7:8",
                                  "64:ff9b::198.51.100.2",
                                  "[::1]:80",
                                  "fe80::1%eth0",
                                  "01.2.3.4",
                                  "1.2.3",
                                  "A:b::C:0:1.2.3.4",
                                  "",
                                  NULL};

/* A prefix of an address: its bits and then none; the same for any address of that network. */
static void key_of(const unsigned char *address, size_t bytes, unsigned bits, size_t own)
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};
    unsigned char *key = fuzz_buffer(RATELIMIT_ADDRESS_KEY_BYTES), again[18], in6[16];
    const unsigned char *from = address + bytes - own;
    size_t len = ratelimit_address_key(address, bytes, bits, bits, key), i;
    MUST(len == (bits > 8 * own ? 0 : 2 + own));
    MUST(fuzz_untouched(key, RATELIMIT_ADDRESS_KEY_BYTES, len));
    MUST(!len || (key[0] == (own == 4 ? 4 : 6) && key[1] == bits));
    for (i = 0; len && i < 8 * own; i++)
        MUST((key[2 + i / 8] >> (7 - i % 8) & 1) ==
             (i < bits ? from[i / 8] >> (7 - i % 8) & 1 : 0));
    MUST(!len || ratelimit_address_key(key + 2, own, bits, bits, again) == len);
    MUST(memcmp(again, key, len) == 0);
    if (own == 4) {
        memcpy(in6, mapped, 12);
        memcpy(in6 + 12, from, 4);
        MUST(ratelimit_address_key(in6, 16, bits, 128, again) == len);
        MUST(memcmp(again, key, len) == 0);
    }
    fuzz_free(key);
}

static void keys_of(const unsigned char *address, size_t bytes)
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};
    bool in6 = bytes == 16 && memcmp(address, mapped, 12) == 0;
    unsigned i; /* some lengths, picked by the last byte */
    for (i = 0; i < 8; i++)
        key_of(address, bytes, (address[bytes - 1] + 17 * i) % 131, in6 ? 4 : bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char wanted[16], *out = fuzz_buffer(16);
    char *text = fuzz_text(data, size), name[INET6_ADDRSTRLEN];
    size_t len = ratelimit_address_parse(size ? (const char *)data : "", size, out), want = 0;
    if (strlen(text) == size)
        want = inet_pton(AF_INET, text, wanted) == 1    ? 4
               : inet_pton(AF_INET6, text, wanted) == 1 ? 16
                                                        : 0;
    MUST(len == want && memcmp(out, wanted, len) == 0 && fuzz_untouched(out, 16, len));
    if (len) {
        MUST(inet_ntop(len == 4 ? AF_INET : AF_INET6, out, name, sizeof name));
        MUST(ratelimit_address_parse(name, strlen(name), wanted) == len);
        MUST(memcmp(out, wanted, len) == 0);
        keys_of(out, len);
    }
    if (size == 16)
        keys_of(data, 16);
    fuzz_free(out);
    free(text);
    return 0;
}
