/* address.c - which part of a text is the client's address, and its one form */
#include "replay.h"

#include <arpa/inet.h>
#include <string.h>

/* Four numbers up to 255 without leading zeros: what inet_pton takes, without the copy. */
static bool is_ipv4(text t)
{
    size_t i = 0, part;
    for (part = 0; part < 4; part++) {
        unsigned value = 0;
        size_t begin = i;
        if (part && (i >= t.len || t.at[i++] != '.'))
            return false;
        begin = i;
        for (; i < t.len && is_digit(t.at[i]) && i - begin < 3; i++)
            value = value * 10 + (unsigned)(t.at[i] - '0');
        if (i == begin || value > 255 || (i - begin > 1 && t.at[begin] == '0'))
            return false;
    }
    return i == t.len;
}

static bool is_ipv6(text t)
{
    char copy[INET6_ADDRSTRLEN];
    unsigned char bytes[16];
    if (t.len < 2 || t.len >= sizeof copy || memchr(t.at, 0, t.len))
        return false;
    memcpy(copy, t.at, t.len);
    copy[t.len] = 0;
    return inet_pton(AF_INET6, copy, bytes) == 1;
}

bool is_address(text t)
{
    return is_ipv4(t) || (t.len && memchr(t.at, ':', t.len) && is_ipv6(t));
}

/* The name of a host: labels of letters, digits, "-" and "_" between dots, the last of which is not
 * a number: 192.0.2.999 is no name. */
bool is_name(text t)
{
    size_t i, label = 0;
    bool digits = true, letters = false;
    if (t.len && t.at[t.len - 1] == '.')
        t.len--;
    if (t.len == 0 || t.len > 253)
        return false;
    for (i = 0; i < t.len; i++) {
        char c = t.at[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (c == '.' && label == 0)
            return false;
        if (c == '.') {
            label = 0;
            digits = true;
            continue;
        }
        if (!letter && !is_digit(c) && c != '-' && c != '_')
            return false;
        digits = digits && is_digit(c);
        letters = letters || letter;
        if (++label > 63)
            return false;
    }
    return label > 0 && !digits && letters;
}

/* The text before the last colon. */
text last_colon_off(text t)
{
    size_t i = t.len;
    while (i && t.at[i - 1] != ':')
        i--;
    return part_of(t, 0, i ? i - 1 : t.len);
}

static bool is_port(text t)
{
    uint64_t port;
    return number(&t, 1, 5, &port) && t.len == 0 && port <= 65535;
}

/* "192.0.2.1", "192.0.2.1:443", "[2001:db8::1]", "[2001:db8::1]:443", "fe80::1%eth0", or the first
 * of a list of those with commas: the address alone. */
text bare_address(text t)
{
    static const text none = {NULL, 0};
    const char *comma = t.len > 1 ? (const char *)memchr(t.at, ',', t.len) : NULL, *end;
    size_t i, colons = 0;
    if (t.len < 2)
        return none;
    if (comma)
        t.len = (size_t)(comma - t.at);
    if (is_ipv4(t))
        return t;
    if (t.len && t.at[0] == '[') {
        text port;
        end = (const char *)memchr(t.at, ']', t.len);
        if (!end)
            return none;
        i = (size_t)(end - t.at);
        port = part_of(t, i + 1, t.len - i - 1);
        if (port.len && !(skip(&port, ':') && is_port(port)))
            return none;
        t = part_of(t, 1, i - 1);
        if (!memchr(t.at, ':', t.len))
            return none;
    }
    for (i = 0; i < t.len; i++)
        colons += t.at[i] == ':';
    if (colons == 1) {
        text host = last_colon_off(t);
        if (is_ipv4(host) && is_port(part_of(t, host.len + 1, t.len - host.len - 1)))
            return host;
        return none;
    }
    end = t.len ? (const char *)memchr(t.at, '%', t.len) : NULL; /* a zone is of the server's */
    if (end)
        t.len = (size_t)(end - t.at);
    return is_ipv6(t) ? t : none;
}

/* Clears all bits but the first `prefix`. */
static void mask(unsigned char *bytes, size_t count, uint64_t prefix)
{
    size_t i;
    for (i = 0; i < count; i++) {
        uint64_t keep = prefix < 8 ? prefix : 8;
        bytes[i] = (unsigned char)(bytes[i] & (0xFF00u >> keep));
        prefix -= keep;
    }
}

/* An address in its one form, cut to the prefix; an IPv4 one mapped into IPv6 is IPv4. */
text clean_address(const prefixes *p, text t, char out[ADDRESS_TEXT])
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    unsigned char bytes[16];
    bool v6 = memchr(t.at, ':', t.len) != NULL;
    uint64_t prefix;
    text clean = t;
    if (t.len >= INET6_ADDRSTRLEN || (!v6 && p->ipv4 == 32))
        return t;
    memcpy(out, t.at, t.len);
    out[t.len] = 0;
    if (inet_pton(v6 ? AF_INET6 : AF_INET, out, bytes) != 1)
        return t;
    if (v6 && memcmp(bytes, mapped, sizeof mapped) == 0) {
        memmove(bytes, bytes + sizeof mapped, 4);
        v6 = false;
    }
    prefix = v6 ? p->ipv6 : p->ipv4;
    mask(bytes, v6 ? 16 : 4, prefix);
    clean.at = inet_ntop(v6 ? AF_INET6 : AF_INET, bytes, out, ADDRESS_TEXT);
    clean.len = strlen(out);
    if (prefix < (v6 ? 128u : 32u))
        clean.len +=
            (size_t)snprintf(out + clean.len, ADDRESS_TEXT - clean.len, "/%u", (unsigned)prefix);
    return clean;
}
