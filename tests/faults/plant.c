/* plant.c - plants one fault of a list in a copy of a file.
 *
 *     plant LIST                 prints "NAME TEST WORD..." for each fault
 *     plant LIST NAME            prints which file the fault is about
 *     plant LIST NAME FILE       prints FILE with the fault planted; exit status 3 if it can't be
 *
 * A list is made of
 *
 *     fault NAME
 *     test  TEST [WORD...]       the program that must catch it, and what of it is run
 *     why   one line: what the fault does
 *     file  FILE                 what it is about, if not ratelimit.h
 *     - what stands in the file, in one or more lines
 *     + what shall stand there instead, in none or more lines
 *
 * White space makes no difference to what is looked for, so that a change of layout leaves the list
 * alone. It must stand in the file exactly once. '#' starts a comment line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 1 << 20, FAULT_BYTES = 4096, LINE_BYTES = 512 };

typedef struct fault {
    char name[LINE_BYTES], test[LINE_BYTES], why[LINE_BYTES], file[LINE_BYTES];
    char from[FAULT_BYTES], to[FAULT_BYTES];
} fault;

static void stop(const char *what, const char *about)
{
    fprintf(stderr, "plant: %s: %s\n", what, about);
    exit(3);
}

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void add(char *text, const char *line)
{
    if (strlen(text) + strlen(line) + 1 > FAULT_BYTES)
        stop("too long", line);
    strcat(text, line);
}

/* The next fault of the list; 0 at its end. *ahead holds the line that starts it, once read. */
static int next_fault(FILE *list, fault *f, char *ahead)
{
    char line[LINE_BYTES];
    memset(f, 0, sizeof *f);
    strcpy(f->file, "ratelimit.h");
    do {
        if (sscanf(ahead, "fault %511s", f->name) == 1)
            break;
        if (ahead[0] && ahead[0] != '#' && ahead[0] != '\n')
            stop("not in a fault", ahead);
    } while (fgets(ahead, LINE_BYTES, list));
    if (!f->name[0])
        return 0;
    ahead[0] = '\0';
    while (fgets(line, sizeof line, list)) {
        if (strncmp(line, "fault ", 6) == 0) {
            strcpy(ahead, line);
            break;
        }
        if (strncmp(line, "why ", 4) == 0)
            strcpy(f->why, line + 4);
        else if (line[0] == '-' || line[0] == '+')
            add(line[0] == '-' ? f->from : f->to, line + 1);
        else if (sscanf(line, "test %511[^\n]", f->test) != 1 &&
                 sscanf(line, "file %511s", f->file) != 1 && line[0] != '\n' && line[0] != '#')
            stop("not understood", line);
    }
    if (!f->test[0] || !f->why[0] || !f->from[0])
        stop("lacks test, why or what stands there", f->name);
    return 1;
}

/* The end of `from` in text if it stands right here but for white space, else NULL. */
static const char *match(const char *text, const char *from)
{
    for (;;) {
        while (is_space(*from))
            from++;
        if (!*from)
            return text;
        while (is_space(*text))
            text++;
        if (*text++ != *from++)
            return NULL;
    }
}

static char *read_file(const char *name)
{
    static char text[FILE_BYTES];
    FILE *in = fopen(name, "rb");
    size_t bytes = in ? fread(text, 1, sizeof text - 1, in) : 0;
    if (!in || bytes == 0 || bytes == sizeof text - 1)
        stop("can't be read", name);
    fclose(in);
    text[bytes] = '\0';
    return text;
}

static int plant(const fault *f, const char *file)
{
    const char *text = read_file(file), *at, *from = NULL, *end = NULL;
    for (at = text; *at; at++) {
        const char *after = is_space(*at) ? NULL : match(at, f->from);
        if (after && from)
            stop("stands there more than once", f->name);
        if (after) {
            from = at;
            end = after;
        }
    }
    if (!from)
        stop("does not stand there", f->name);
    printf("%.*s%s%s", (int)(from - text), text, f->to, end);
    return 0;
}

int main(int argc, char **argv)
{
    static fault f;
    char ahead[LINE_BYTES] = "";
    FILE *list = argc >= 2 && argc <= 4 ? fopen(argv[1], "r") : NULL;
    if (!list)
        stop("usage: plant LIST [NAME [FILE]]", argc > 1 ? argv[1] : "");
    while (next_fault(list, &f, ahead)) {
        if (argc == 2)
            printf("%s %s\n", f.name, f.test);
        else if (strcmp(f.name, argv[2]) == 0)
            return argc == 4 ? plant(&f, argv[3]) : (puts(f.file) < 0);
    }
    if (argc > 2)
        stop("no such fault", argv[2]);
    return 0;
}
