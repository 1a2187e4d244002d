/* keys.c - which lines count, by which key, and what each costs */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK       65536
#define RECENT      8192 /* a power of two */
#define RECENT_TEXT 48

/* Clients seen lately, as they were written, so that most lines need no other look-up. */
struct recent {
    uint32_t number; /* of the key, + 1 */
    uint8_t len;
    char at[RECENT_TEXT];
};

/* ---- a set of texts, numbered ---------------------------------------------------------------- */

#define ROTATE(x, n) ((x) << (n) | (x) >> (64 - (n)))

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = ROTATE(v[1], 13) ^ v[0];
    v[3] = ROTATE(v[3], 16) ^ v[2];
    v[0] = ROTATE(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = ROTATE(v[1], 17) ^ v[2];
    v[3] = ROTATE(v[3], 21) ^ v[0];
    v[2] = ROTATE(v[2], 32);
}

/* SipHash-1-3 with a secret of the run: nobody who writes to the log can make keys collide. */
static uint32_t hash_of(const uint64_t secret[2], text t)
{
    uint64_t v[4] = {UINT64_C(0x736f6d6570736575), UINT64_C(0x646f72616e646f6d),
                     UINT64_C(0x6c7967656e657261), UINT64_C(0x7465646279746573)};
    uint64_t word = 0;
    size_t i = 0, k;
    for (k = 0; k < 4; k++)
        v[k] ^= secret[k % 2];
    for (; i + 8 <= t.len; i += 8) {
        memcpy(&word, t.at + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    word = (uint64_t)t.len << 56;
    for (k = 0; i < t.len; i++, k += 8)
        word |= (uint64_t)(unsigned char)t.at[i] << k;
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xFF;
    for (k = 0; k < 3; k++)
        sip_round(v);
    word = v[0] ^ v[1] ^ v[2] ^ v[3];
    return (uint32_t)(word ^ word >> 32);
}

void keys_init(key_set *k)
{
    FILE *f = fopen("/dev/urandom", "rb");
    memset(k, 0, sizeof *k);
    if (!f || fread(k->secret, sizeof k->secret, 1, f) != 1)
        k->secret[0] ^= ratelimit_clock_ns() * UINT64_C(0x9E3779B97F4A7C15);
    if (f)
        fclose(f);
    k->recent = (struct recent *)resize(FOR_KEYS, NULL, 0, RECENT, sizeof *k->recent);
    memset(k->recent, 0, RECENT * sizeof *k->recent);
    k->buffer = (char *)resize(FOR_KEYS, NULL, 0, MAX_LINE + 128, 1);
}

static void keys_reindex(key_set *k)
{
    size_t size = k->index_size ? k->index_size * 2 : 4096, i, at;
    k->index = (uint32_t *)resize(FOR_KEYS, k->index, k->index_size, size, sizeof *k->index);
    k->index_size = size;
    memset(k->index, 0, size * sizeof *k->index);
    for (i = 0; i < k->count; i++) {
        for (at = k->list[i].hash & (size - 1); k->index[at]; at = (at + 1) & (size - 1))
            ;
        k->index[at] = (uint32_t)(i + 1);
    }
}

static char *keys_store(key_set *k, text t)
{
    char *at;
    if (k->block_left < t.len + 1) {
        k->block_left = t.len + 1 > BLOCK ? t.len + 1 : BLOCK;
        k->block = (char *)resize(FOR_KEYS, NULL, 0, k->block_left, 1);
    }
    at = k->block;
    k->block += t.len + 1;
    k->block_left -= t.len + 1;
    at[0] = 0;
    memcpy(at + 1, t.at, t.len);
    return at;
}

static uint32_t key_add(key_set *k, text t, uint32_t hash, size_t at)
{
    key *added;
    if (k->count == k->room) {
        size_t room = k->room ? k->room * 2 : 1024;
        k->list = (key *)resize(FOR_KEYS, k->list, k->room, room, sizeof *k->list);
        k->room = room;
    }
    if (k->count >= UINT32_MAX - 1)
        fail(1, "more than 4 billion keys: name a coarser one, --key or --ip-prefix");
    added = &k->list[k->count++];
    memset(added, 0, sizeof *added);
    added->at = keys_store(k, t);
    added->len = (uint32_t)t.len;
    added->hash = hash;
    k->index[at] = (uint32_t)k->count;
    return (uint32_t)(k->count - 1);
}

uint32_t key_number(key_set *k, text t)
{
    uint32_t hash = hash_of(k->secret, t);
    size_t at;
    if (k->count * 2 >= k->index_size)
        keys_reindex(k);
    for (at = hash & (k->index_size - 1); k->index[at]; at = (at + 1) & (k->index_size - 1)) {
        const key *old = &k->list[k->index[at] - 1];
        if (old->hash == hash && old->len == t.len && memcmp(old->at + 1, t.at, t.len) == 0)
            return k->index[at] - 1;
    }
    return key_add(k, t, hash, at);
}

text key_text(const key *k)
{
    text t;
    t.at = k->at + 1;
    t.len = k->len;
    return t;
}

/* ---- which lines count ----------------------------------------------------------------------- */

static bool status_wanted(const options *opt, text status)
{
    uint64_t value;
    size_t i;
    if (!number(&status, 3, 3, &value) || status.len)
        return false;
    for (i = 0; i < opt->status_count; i++)
        if (opt->status[i] == value || (opt->status[i] < 10 && opt->status[i] == value / 100))
            return true;
    return false;
}

/* By --only, --status, --method and --path-prefix. */
choice choose(const options *opt, text line, const parts *p, const char **why)
{
    if (opt->only && !has_text(line, opt->only))
        return LEFT_OUT;
    if (opt->status_count && !p->status.at)
        *why = "its form has no status (--status), or the line ends before it";
    else if (opt->method && !p->method.at)
        *why = "its form has no method (--method), or the line ends before it";
    else if (opt->path_prefix && !p->path.at)
        *why = "its form has no path (--path-prefix), or the line ends before it";
    else
        return (opt->status_count && !status_wanted(opt, p->status)) ||
                       (opt->method && !same_text(p->method, opt->method)) ||
                       (opt->path_prefix && !begins_with(p->path, opt->path_prefix))
                   ? LEFT_OUT
                   : CHOSEN;
    return BAD;
}

/* ---- the key --------------------------------------------------------------------------------- */

/* An address in its one form; any other text as it is. */
static text one_form(const options *opt, text t, char buffer[ADDRESS_TEXT])
{
    text address = bare_address(t);
    return address.at ? clean_address(&opt->prefix, address, buffer) : t;
}

static const char *client_key(const options *opt, key_set *k, text client, uint32_t *out)
{
    char buffer[ADDRESS_TEXT];
    uint64_t word = 0;
    struct recent *recent;
    size_t begin = client.len > 8 ? client.len - 8 : 0;
    if (client.len == 0)
        return "it has no client";
    memcpy(&word, client.at + begin, client.len - begin);
    word = (word ^ client.len) * UINT64_C(0x9E3779B97F4A7C15);
    recent = &k->recent[word >> 51];
    if (recent->number && recent->len == client.len &&
        memcmp(recent->at, client.at, client.len) == 0) {
        *out = recent->number - 1;
        return NULL;
    }
    *out = key_number(k, one_form(opt, client, buffer));
    if (client.len <= RECENT_TEXT) {
        recent->number = *out + 1;
        recent->len = (uint8_t)client.len;
        memcpy(recent->at, client.at, client.len);
    }
    return NULL;
}

static const char *chosen_key(const options *opt, key_set *k, text t, uint32_t *out)
{
    char buffer[ADDRESS_TEXT];
    if (t.len == 0)
        return "the field that is the key is empty";
    if (t.len == 1 && t.at[0] == '-')
        return "the field that is the key is \"-\"";
    *out = key_number(k, one_form(opt, t, buffer));
    return NULL;
}

static const char *path_key(const options *opt, key_set *k, const parts *p, uint32_t *out)
{
    char buffer[ADDRESS_TEXT];
    text client, both;
    if (!p->path.at)
        return "it has no path, or ends before it";
    if (opt->key == KEY_PATH) {
        *out = key_number(k, p->path);
        return NULL;
    }
    if (p->client.len == 0)
        return "it has no client";
    client = one_form(opt, p->client, buffer);
    memcpy(k->buffer, client.at, client.len);
    k->buffer[client.len] = ' ';
    memcpy(k->buffer + client.len + 1, p->path.at, p->path.len);
    both.at = k->buffer;
    both.len = client.len + 1 + p->path.len;
    *out = key_number(k, both);
    return NULL;
}

/* NULL, or why the line has none. */
const char *find_key(const options *opt, key_set *k, text line, const parts *p, uint32_t *out)
{
    text field;
    if (p->has_chosen || opt->json_key)
        return p->chosen.at ? chosen_key(opt, k, p->chosen, out)
                            : "it is neither JSON nor W3C, and --json-key is given";
    if (opt->key == KEY_FIELD)
        return field_number(line, opt->field, &field)
                   ? chosen_key(opt, k, field, out)
                   : "it has not so many fields, or a quote without an end (--key)";
    if (p->more_fields)
        return "after TIME KEY COST something follows: name the key's field, --key N";
    if (p->any_client || opt->key == KEY_IP)
        return client_key(opt, k, p->client, out);
    return path_key(opt, k, p, out);
}

/* At least 1: a request that costs nothing can't be limited. */
const char *find_cost(const options *opt, const parts *p, uint64_t *cost)
{
    text size = p->size;
    bool in_bytes = opt->cost_bytes && !p->any_client;
    *cost = 1;
    if (!size.at)
        return in_bytes ? "it has no size (--cost bytes), or ends before it" : NULL;
    if ((!in_bytes && !p->any_client) || (size.len == 1 && size.at[0] == '-' && in_bytes))
        return NULL;
    if (p->more_fields)
        return NULL;
    if (!number(&size, 1, 20, cost) || size.len)
        return in_bytes ? "its size is no whole number" : "its cost is no whole number";
    *cost += *cost == 0;
    return NULL;
}
