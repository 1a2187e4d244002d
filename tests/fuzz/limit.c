/* Texts of limits: what parses formats, and parses to the same; what does not says where. */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "fuzz.h"

const char *const fuzz_seeds[] = {"10/s",
                                  "10/s burst 20",
                                  "1000/d window",
                                  "5/5m burst 5 window",
                                  "unlimited",
                                  "0.5/m",
                                  "167.0/1500ms\tburst\t7",
                                  "0.0000000000000000001/1.5us",
                                  "18446744073709551616/w",
                                  "9223372036854775807/146y",
                                  "1/4611686018427387904ns",
                                  "1000000007/s",
                                  "0/s",
                                  "10/s burst 0",
                                  "",
                                  NULL};

/* At every size of the buffer: all of it or nothing. */
static void format_at_every_size(const ratelimit_limit *limit, const char *text, size_t len)
{
    size_t bytes;
    for (bytes = 0; bytes <= len + 2; bytes++) {
        unsigned char *buf = fuzz_buffer(bytes);
        MUST(ratelimit_limit_format(limit, (char *)buf, bytes) == len);
        if (bytes > len)
            MUST(memcmp(buf, text, len + 1) == 0 && fuzz_untouched(buf, bytes, len + 1));
        else
            MUST((!bytes || !buf[0]) && fuzz_untouched(buf, bytes, bytes));
        fuzz_free(buf);
    }
    MUST(ratelimit_limit_format(limit, NULL, 0) == len);
}

/* A whole burst passes once; then retry_after is exact. */
static void decide(const ratelimit_limit *limit)
{
    const uint64_t now = UINT64_C(1) << 61;
    ratelimit_bucket b = {0, 0}, before;
    ratelimit_result r;
    if (limit->burst == UINT64_MAX) {
        MUST(ratelimit_bucket_take(&b, limit, INT64_MAX, now, &r));
        return;
    }
    MUST(ratelimit_bucket_take(&b, limit, limit->burst, now, &r));
    MUST(r.remaining == 0 || !limit->interval_ns);
    if (ratelimit_bucket_take(&b, limit, limit->burst, now, &r))
        return; /* a whole burst in less than a ns */
    MUST(r.status == RATELIMIT_DENIED && r.retry_after_ns > 0);
    before = b;
    MUST(!ratelimit_bucket_take(&b, limit, limit->burst, now + r.retry_after_ns - 1, NULL));
    MUST(b.full_ns == before.full_ns);
    MUST(ratelimit_bucket_take(&b, limit, limit->burst, now + r.retry_after_ns, NULL));
}

/* A number as digits / tens. Behind it, or NULL if these do not fit. */
static const char *decimal(const char *at, uint64_t *digits, uint64_t *tens)
{
    bool point = false;
    *digits = 0;
    *tens = 1;
    for (; *at == '.' || (*at >= '0' && *at <= '9'); at++) {
        point = point || *at == '.';
        if (*at == '.')
            continue;
        if (__builtin_mul_overflow(*digits, (uint64_t)10, digits) ||
            __builtin_add_overflow(*digits, (uint64_t)(*at - '0'), digits) ||
            (point && __builtin_mul_overflow(*tens, (uint64_t)10, tens)))
            return NULL;
    }
    return at;
}

/* The rate is the one that was written, exactly: both fractions multiplied out. */
static void rate_is_exact(const char *text, const ratelimit_limit *limit)
{
    __extension__ typedef unsigned __int128 wide;
    static const char names[] = "nushdw";
    static const uint64_t units[] = {
        1, RATELIMIT_MICROSECOND, RATELIMIT_SECOND, RATELIMIT_HOUR, RATELIMIT_DAY, RATELIMIT_WEEK};
    uint64_t rate, rate_tens, per = 1, per_tens = 1, unit;
    wide left, right;
    const char *at = decimal(text, &rate, &rate_tens);
    if (!at || *at++ != '/')
        return;
    if (*at >= '0' && *at <= '9' && !(at = decimal(at, &per, &per_tens)))
        return;
    unit = *at != 'm'     ? units[strchr(names, *at) - names]
           : at[1] == 's' ? RATELIMIT_MILLISECOND
                          : RATELIMIT_MINUTE;
    left = (wide)limit->tokens * rate_tens;
    right = (wide)rate * limit->per_ns;
    if (__builtin_mul_overflow(left, (wide)per, &left) ||
        __builtin_mul_overflow(left, (wide)unit, &left) ||
        __builtin_mul_overflow(right, (wide)per_tens, &right))
        return;
    MUST(left == right);
}

static void good(const ratelimit_limit *limit)
{
    ratelimit_limit again;
    char text[80];
    size_t len = ratelimit_limit_format(limit, text, sizeof text);
    MUST(len > 0 && len < sizeof text && strlen(text) == len);
    MUST(ratelimit_limit_check(limit) == RATELIMIT_OK);
    MUST(ratelimit_limit_parse(&again, text) == RATELIMIT_OK);
    MUST(memcmp(&again, limit, sizeof again) == 0);
    format_at_every_size(limit, text, len);
    decide(limit);
}

/* The fault is the first token that is wrong: what comes before it could have gone on, what comes
 * after its first byte does not matter. */
static void wrong_at(const char *text, size_t size, size_t fault)
{
    ratelimit_limit limit;
    size_t again;
    ratelimit_status status = ratelimit_limit_parse_n(&limit, text, fault, &again);
    MUST(status != RATELIMIT_SYNTAX || again == fault);
    if (fault == size)
        return;
    MUST(ratelimit_limit_parse_n(&limit, text, fault + 1, &again) == RATELIMIT_SYNTAX);
    MUST(again == fault);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ratelimit_limit limit, before;
    size_t fault = SIZE_MAX;
    ratelimit_status status;
    char *text = fuzz_text(data, size);
    memset(&limit, FUZZ_MARK, sizeof limit);
    before = limit;
    status = ratelimit_limit_parse_n(&limit, size ? (const char *)data : "", size, &fault);
    if (status == RATELIMIT_OK) {
        MUST(fault == 0);
        good(&limit);
        rate_is_exact(text, &limit);
    } else {
        MUST(status == RATELIMIT_SYNTAX || status == RATELIMIT_BAD_LIMIT);
        MUST(fault <= size && memcmp(&limit, &before, sizeof limit) == 0);
        if (status == RATELIMIT_SYNTAX)
            wrong_at(text, size, fault);
    }
    if (strlen(text) == size) {
        before = limit;
        MUST(ratelimit_limit_parse(&limit, text) == status);
        MUST(memcmp(&limit, &before, sizeof limit) == 0);
    }
    free(text);
    return 0;
}
