/* fuzz.h - what the fuzz targets share.
 *
 * A target defines LLVMFuzzerTestOneInput and fuzz_seeds. Built with clang -fsanitize=fuzzer it is
 * driven by libFuzzer; built with FUZZ_PLAIN, by any compiler, it is a program of its own:
 *
 *     target                 the seeds, and a fixed number of changed ones
 *     target FILE...         these, say a crash that libFuzzer left
 *     target --seeds FOLDER  writes the seeds there, for libFuzzer to begin with
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends with NULL. */
extern const char *const fuzz_seeds[];

#define MUST(what)                                                                                 \
  do {                                                                                             \
    if (!(what)) {                                                                                 \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what);                         \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

/* A buffer of any size with bytes on both sides that nobody may touch. */
enum { FUZZ_EDGE = 32, FUZZ_MARK = 0xa5 };

static inline unsigned char *fuzz_buffer(size_t bytes)
{
    unsigned char *all = malloc(bytes + 2 * FUZZ_EDGE);
    MUST(all);
    memset(all, FUZZ_MARK, bytes + 2 * FUZZ_EDGE);
    return all + FUZZ_EDGE;
}

/* True if bytes from `from` on, and the edges, are as they were. */
static inline int fuzz_untouched(const unsigned char *buffer, size_t bytes, size_t from)
{
    size_t i;
    for (i = 0; i < FUZZ_EDGE; i++)
        if (buffer[(ptrdiff_t)i - FUZZ_EDGE] != FUZZ_MARK || buffer[bytes + i] != FUZZ_MARK)
            return 0;
    for (i = from; i < bytes; i++)
        if (buffer[i] != FUZZ_MARK)
            return 0;
    return 1;
}

static inline void fuzz_free(unsigned char *buffer)
{
    free(buffer - FUZZ_EDGE);
}

/* The data and a NUL, to be freed. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    MUST(text);
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    return text;
}

#if defined(FUZZ_PLAIN)

enum { FUZZ_ROUNDS = 20000, FUZZ_LARGEST = 4096 };

static uint64_t fuzz_state = 1;

static size_t fuzz_random(size_t below)
{
    fuzz_state ^= fuzz_state << 13;
    fuzz_state ^= fuzz_state >> 7;
    fuzz_state ^= fuzz_state << 17;
    return (size_t)(fuzz_state >> 11) % below;
}

/* From memory of just that size, so that a sanitizer sees a read beyond. */
static void fuzz_run(const unsigned char *data, size_t size)
{
    unsigned char *copy = malloc(size ? size : 1);
    MUST(copy);
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static const char *fuzz_seed(void)
{
    size_t count = 0;
    while (fuzz_seeds[count])
        count++;
    return fuzz_seeds[fuzz_random(count)];
}

/* One change: a byte, a piece away, a piece of a seed into it. */
static size_t fuzz_change(unsigned char *data, size_t size)
{
    static const char bytes[] = "0123456789./ \t\n\r#|:{}[]\",-\\\0\1\177\377";
    size_t at = fuzz_random(size + 1), len;
    const char *seed = fuzz_seed();
    switch (fuzz_random(4)) {
    case 0:
        if (at < size)
            data[at] = (unsigned char)fuzz_random(256);
        return size;
    case 1:
        if (at < size)
            data[at] = (unsigned char)bytes[fuzz_random(sizeof bytes - 1)];
        return size;
    case 2:
        len = fuzz_random(size - at + 1);
        memmove(data + at, data + at + len, size - at - len);
        return size - len;
    default:
        seed += fuzz_random(strlen(seed) + 1);
        len = fuzz_random(strlen(seed) + 1);
        if (size + len > FUZZ_LARGEST)
            return size;
        memmove(data + at + len, data + at, size - at);
        memcpy(data + at, seed, len);
        return size + len;
    }
}

static void fuzz_run_changed(void)
{
    unsigned char data[FUZZ_LARGEST];
    size_t i, size, changes;
    for (i = 0; i < FUZZ_ROUNDS; i++) {
        const char *seed = fuzz_seed();
        size = strlen(seed) < FUZZ_LARGEST ? strlen(seed) : FUZZ_LARGEST;
        memcpy(data, seed, size);
        for (changes = 1 + fuzz_random(5); changes; changes--)
            size = fuzz_change(data, size);
        fuzz_run(data, size);
    }
}

static int fuzz_run_file(const char *name)
{
    static unsigned char data[1 << 20];
    FILE *file = fopen(name, "rb");
    size_t size;
    if (!file) {
        perror(name);
        return 0;
    }
    size = fread(data, 1, sizeof data, file);
    fclose(file);
    fuzz_run(data, size);
    return 1;
}

static int fuzz_write_seeds(const char *folder)
{
    size_t i;
    char name[1024];
    for (i = 0; fuzz_seeds[i]; i++) {
        FILE *file;
        snprintf(name, sizeof name, "%s/seed%zu", folder, i);
        file = fopen(name, "wb");
        if (!file || fputs(fuzz_seeds[i], file) < 0 || fclose(file) != 0) {
            perror(name);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    int i;
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0)
        return fuzz_write_seeds(argv[2]);
    for (i = 1; i < argc; i++)
        if (!fuzz_run_file(argv[i]))
            return 2;
    for (i = 0; argc == 1 && fuzz_seeds[i]; i++)
        fuzz_run((const unsigned char *)fuzz_seeds[i], strlen(fuzz_seeds[i]));
    if (argc == 1)
        fuzz_run_changed();
    return 0;
}

#endif
#endif
